"""No text of the product makes a medical claim.

Clinicians and patients read the page, the reports, the client's output and the documents on triage:
these files must not contain any form of a forbidden word, not even in code and comments. Elsewhere
"safe" may be part of a compound such as "thread-safe", and only the listed forms are forbidden.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from eulerlora import EulerLoRA
from eulerlora_client.commands.program import program
from service.app import create_service
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

ROOT = Path(__file__).parents[1]
PACKAGES = ("eulerlora", "training", "service")
CARD = ROOT / "eulerlora" / "default" / "README.md"
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
    """Files that are checked as a whole, because clinicians and patients read their text."""
    for folder in ("service/page", "eulerlora_client"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT)
    yield CARD
    yield from (ROOT / "docs").rglob("triage*.md")


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("path", sorted(clinical_files()), ids=lambda path: path.name)
def test_text_for_clinicians_and_patients_makes_no_claim(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), FORBIDDEN_TO_CLINICIANS) == []


def test_the_clinical_files_include_policy_page_and_card() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in clinical_files()}
    assert {"eulerlora_client/policy/results.py", "eulerlora_client/policy/policy.toml"} <= names
    assert {"eulerlora/default/README.md", "docs/triage-policy.md"} <= names
    assert "service/page/index.html" in names


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_no_document_makes_a_claim(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), FORBIDDEN) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_string_of_the_code_makes_a_claim(package: str) -> None:
    actual = {
        f"{path.relative_to(ROOT)}: {offence}"
        for path in (ROOT / package).rglob("*.py")
        for text in string_literals(path)
        for offence in offences(text, FORBIDDEN)
    }
    assert actual == set()


def test_no_help_text_of_a_command_makes_a_claim() -> None:
    texts = dict(help_texts(program, ""))
    assert {"serve", "policy", "policy fit"} <= set(texts)
    actual = {name: offences(text, FORBIDDEN) for name, text in texts.items()}
    assert not any(actual.values()), actual


def test_the_api_description_makes_no_claim(checkpoint_folder: Path) -> None:
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
def test_both_patterns_match_a_claim(claim: str) -> None:
    assert offences(claim, FORBIDDEN)
    assert offences(claim, FORBIDDEN_TO_CLINICIANS)


@pytest.mark.parametrize(
    "words", ["safetensors", "thread-safe", "benign keratosis", "detection", "confidence interval"]
)
def test_the_general_pattern_permits_technical_terms(words: str) -> None:
    assert offences(words, FORBIDDEN) == []


def offences(text: str, forbidden: re.Pattern[str]) -> list[str]:
    """Returns the matches of `forbidden` in a text, with some context."""
    return [
        " ".join(text[max(0, match.start() - 30) : match.end() + 20].split())
        for match in forbidden.finditer(text)
    ]


def string_literals(path: Path) -> Iterator[str]:
    """Yields the string literals of a module except its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_string and id(node) not in docstrings:
            yield node.value


def help_texts(group: click.Group, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields name and help text of every command below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        options = [str(item.help) for item in command.params if isinstance(item, click.Option)]
        help_text = command.get_help(click.Context(command, info_name=name))
        yield prefix + name, " ".join([help_text, *options])
        if isinstance(command, click.Group):
            yield from help_texts(command, f"{prefix}{name} ")
