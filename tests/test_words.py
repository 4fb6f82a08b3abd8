"""No text of the product claims what it must not: everything that a person reads is read here.

Clinicians and patients read the page, the reports, what the client prints and the documents on
triage; there no form of a forbidden word may stand, in code and comments neither. Elsewhere
"safe" may be part of a compound such as "thread-safe", and only the listed forms are forbidden.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from eulerlora import EulerLoRA
from service.app import create_service
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

ROOT = Path(__file__).parents[1]
PACKAGES = ("eulerlora", "training", "service")
TEXT = {".css", ".csv", ".html", ".j2", ".jinja", ".js", ".json", ".md", ".py", ".svg", ".toml"}

FORBIDDEN = re.compile(
    r"\bdiagnos\w*|\bdetects\b|(?<![\w-])safe(?![\w-])|\bbenign,\s+no\s+action"
    r"|\bconfidence\s+of\s+disease",
    re.IGNORECASE,
)
FORBIDDEN_TO_CLINICIANS = re.compile(
    r"\bdiagnos\w*|\bdetect\w*|\bsafe(ly)?\b|\bbenign,\s+no\s+action|\bconfidence\s+of\s+disease",
    re.IGNORECASE,
)


def clinical_files() -> Iterator[Path]:
    """Whole files that hold text for clinicians and patients."""
    for folder in ("service/page", "eulerlora_client"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT)
    yield ROOT / "eulerlora" / "default" / "README.md"
    yield from (ROOT / "docs").rglob("triage*.md")


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("path", sorted(clinical_files()), ids=lambda path: path.name)
def test_what_clinicians_and_patients_read_makes_no_claim(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), FORBIDDEN_TO_CLINICIANS) == []


def test_those_files_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in clinical_files()}
    assert {"eulerlora_client/policy/wording.py", "eulerlora_client/policy/policy.toml"} <= names
    assert {"eulerlora/default/README.md", "docs/triage-policy.md"} <= names


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_no_document_makes_a_claim(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), FORBIDDEN) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_that_the_code_prints_or_writes_makes_a_claim(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {offence}"
        for path in (ROOT / package).rglob("*.py")
        for text in strings(path)
        for offence in offences(text, FORBIDDEN)
    }
    assert found == set()


def test_no_help_of_a_command_makes_a_claim() -> None:
    helps = dict(help_texts())
    assert {"serve", "policy", "policy fit"} <= set(helps)
    found = {name: offences(text, FORBIDDEN) for name, text in helps.items()}
    assert not any(found.values()), found


def test_the_description_of_the_service_makes_no_claim(checkpoint_folder: Path) -> None:
    models = ServedModels([ServedModel.of(EulerLoRA.load(checkpoint_folder, "cpu"))])
    application = create_service(models, ServiceSettings(), Lifecycle()).application
    description = json.dumps(application.openapi())
    assert "/predict" in description
    assert offences(description, FORBIDDEN_TO_CLINICIANS) == []


@pytest.mark.parametrize(
    "claim",
    [
        "A diagnosis.",
        "DIAGNOSE it",
        "diagnostic aid",
        "it detects melanoma",
        "this is safe",
        "Safe!",
        "benign,\nno action",
        "confidence of  disease",
    ],
)
def test_a_forbidden_claim_is_found(claim: str) -> None:
    assert offences(claim, FORBIDDEN)
    assert offences(claim, FORBIDDEN_TO_CLINICIANS)


@pytest.mark.parametrize(
    "words", ["safetensors", "thread-safe", "benign keratosis", "detection", "confidence interval"]
)
def test_other_words_are_not(words: str) -> None:
    assert offences(words, FORBIDDEN) == []


def offences(text: str, forbidden: re.Pattern[str]) -> list[str]:
    """Each forbidden word of a text, with what stands around it."""
    return [
        " ".join(text[max(0, found.start() - 30) : found.end() + 20].split())
        for found in forbidden.finditer(text)
    ]


def strings(path: Path) -> Iterator[str]:
    """The string literals of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            yield node.value


def help_texts() -> Iterator[tuple[str, str]]:
    """What `--help` shows of every command that the project declares, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"]
    for prefix, group in (("", "eulerlora.commands"), ("policy ", "eulerlora.policy_commands")):
        for name, target in groups[group].items():
            module, _, attribute = target.partition(":")
            yield from help_of(getattr(import_module(module), attribute), prefix + name)


def help_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    parameters = [str(each.help) for each in command.params if isinstance(each, click.Option)]
    yield name, " ".join([command.get_help(context), *parameters])
    if isinstance(command, click.Group) and name != "policy":
        for each, subcommand in command.commands.items():
            yield from help_of(subcommand, f"{name} {each}")
