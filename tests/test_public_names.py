"""The public names: what docs/reference/stability.md promises to keep."""

from importlib import import_module

import pytest

import eulerlora_client
from eulerlora_contract import answers, problems

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
