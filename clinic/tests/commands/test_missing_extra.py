"""Commands of the clinic whose extra is not installed name this distribution."""

import sys

import pytest

from tests.program import refusal


@pytest.mark.parametrize(
    ("arguments", "module", "requirement"),
    [
        (("site", "fit"), "eulerlora_clinic.fitting.commands", "eulerlora-clinic[train]"),
        (("policy", "fit"), "eulerlora_clinic.fitting.commands", "eulerlora-clinic[train]"),
        (("demo",), "eulerlora_clinic.demo", "eulerlora-clinic[serve]"),
    ],
)
def test_a_command_without_its_extra_names_the_distribution_of_the_command(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], module: str, requirement: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert refusal(*arguments).endswith(f"run: pip install '{requirement}'")
