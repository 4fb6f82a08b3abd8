"""The public names: what docs/reference/stability.md promises to keep."""

import re
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import BaseModel

import eulerlora_client
from eulerlora_contract import answers, problems

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
INNER = {"ModelList", "ServiceStatus", "WireModel"}  # not what a method of the clients returns


@pytest.mark.parametrize(
    "package",
    ["eulerlora", "eulerlora.nn", "eulerlora.peft", "eulerlora.sampling", "eulerlora_client"],
)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_problem_and_wire_model_is_public() -> None:
    for module in (problems, answers):
        defined = {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and kind.__module__ == module.__name__
        }
        assert defined - INNER <= set(eulerlora_client.__all__)


@pytest.mark.parametrize("package", ["eulerlora", "eulerlora.peft", "eulerlora_client"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    """Models and enumerations of answers are in that of HTTP."""
    listed = re.findall(r"^::: (\S+)", REFERENCE.read_text(), re.MULTILINE)
    names = {name.rpartition(".")[2] for name in listed}
    module = import_module(package)
    for name in set(module.__all__) - {"__version__"} - names:
        value = getattr(module, name)
        assert issubclass(value, BaseModel | Enum) or value.__module__ in listed, name
