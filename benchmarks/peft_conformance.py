"""PEFT's own tests of LoRA, run on EulerLoRA: a table of passed, refused and failed tests.

    pip download --no-deps --no-binary :all: peft==0.21.2 && tar xzf peft-0.21.2.tar.gz
    pip install datasets diffusers parameterized
    python -m benchmarks.peft_conformance peft-0.21.2 [-k EXPRESSION]

The tests are those of the named files that use `LoraConfig`; they run unchanged in a copy, with
`LoraConfig` replaced by a subclass of `EulerLoraConfig` that has LoRA's defaults and knows a role
for every module. Hub models are not downloaded.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

FILES = ("test_custom_models.py", "test_initialization.py")
OUTCOMES = ("passed", "refused", "needs the Hub", "skipped by PEFT", "failed")
HUB = (
    "OSError",
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "ConnectionError",
    "hub_online",
)


def pytest_configure() -> None:
    """Replaces `LoraConfig`, before pytest imports the tests; pytest calls it for this plugin."""
    import peft  # noqa: PLC0415 - the plugin runs in another process than the command
    from peft.tuners import lora  # noqa: PLC0415

    from eulerlora.peft import EulerLoraConfig  # noqa: PLC0415

    @dataclass
    class LoraConfig(EulerLoraConfig):
        r: int = 8
        lora_alpha: int = 8
        init_gain: float = 1.0
        roles: dict[str, str] | None = field(default_factory=lambda: {".*": "input"})

    peft.LoraConfig = lora.LoraConfig = LoraConfig  # type: ignore[misc]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keeps the tests that use `LoraConfig` as a parameter or in their code."""
    import peft  # noqa: PLC0415

    items[:] = [item for item in items if _uses(item, peft.LoraConfig)]


def _uses(item: Any, config: type) -> bool:
    parameters = getattr(item, "callspec", None)
    classes = [value for value in (parameters.params if parameters else {}).values()
               if isinstance(value, type)]  # fmt: skip
    if classes:
        return config in classes
    return re.search(r"\bLoraConfig\b", inspect.getsource(item.function)) is not None


def outcome_of(case: ElementTree.Element) -> str:
    """Returns one of `OUTCOMES` for a test case of a JUnit file."""
    if case.find("skipped") is not None:
        return "skipped by PEFT"
    fault = next(
        (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
    )
    if fault is None:
        return "passed"
    text = f"{fault.get('message')}\n{fault.text}"
    if "SettingsError" in text:
        return "refused"
    return "needs the Hub" if any(name in text for name in HUB) else "failed"


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-k", "expression", default="", help="As in pytest.")
@click.option("--junit", type=click.Path(path_type=Path), help="Keep pytest's results.")
def main(source: Path, expression: str, junit: Path | None) -> None:
    """Print the outcomes of the tests in SOURCE/tests, an unpacked source distribution."""
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "tests"
        shutil.copytree(source / "tests", tests)
        (tests / "__init__.py").touch()
        results = (junit or Path(folder) / "results.xml").absolute()
        arguments = [f"tests/{name}" for name in FILES] + ["-k", expression] * bool(expression)
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", __spec__.name,
                f"--junitxml={results}", *arguments,
            ],
            cwd=folder,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([*sys.path])},
            check=False,
        )  # fmt: skip
        if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise click.ClickException("pytest could not run the tests; its output says why")
        cases = list(ElementTree.parse(results).iter("testcase"))
    counts = Counter((str(case.get("classname")).split(".")[1], outcome_of(case)) for case in cases)
    click.echo("| file | " + " | ".join(OUTCOMES) + " |\n|---|" + "---:|" * len(OUTCOMES))
    for name in (file.removesuffix(".py") for file in FILES):
        numbers = " | ".join(f"{counts[name, outcome]:,}" for outcome in OUTCOMES)
        click.echo(f"| `{name}` | {numbers} |")
    for case in cases:
        if outcome_of(case) == "failed":
            click.echo(f"failed: {case.get('classname')}::{case.get('name')}")


if __name__ == "__main__":
    main()
