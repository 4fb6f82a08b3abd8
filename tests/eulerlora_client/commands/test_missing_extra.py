"""Commands whose extra is not installed."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import click
import pytest

from eulerlora_client.commands import program
from tests.program import run

LINE = "eulerlora: work requires the module absent_module, which is not installed; "


@click.command("work")
def work_command() -> None:
    """Imports a module that is not installed."""
    import absent_module  # type: ignore[import-not-found]  # noqa: F401, PLC0415


def declare(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Makes `work` the program's only command."""
    command = EntryPoint("work", target, program.ENTRY_POINTS)
    monkeypatch.setattr(
        program, "entry_points", lambda **selected: EntryPoints([command]).select(**selected)
    )


@pytest.fixture
def command_module(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module with the command."""
    module = ModuleType("installed_commands")
    module.__dict__["work_command"] = work_command
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_a_command_that_cannot_be_imported_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, "absent_module:work_command [train]")
    done = run("work", "recipe", "--data", "folder")
    assert (done.status, done.out) == (1, "")
    assert done.err == LINE + "run: pip install 'eulerlora[train]'\n"


def test_a_command_that_lacks_a_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, command_module: str
) -> None:
    declare(monkeypatch, f"{command_module}:work_command [serve]")
    done = run("work")
    assert (done.status, done.out) == (1, "")
    assert done.err == LINE + "run: pip install 'eulerlora[serve]'\n"


def test_the_list_of_commands_includes_a_command_without_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(monkeypatch, "absent_module:work_command [train]")
    done = run("--help")
    assert done.status == 0
    assert "work  (not installed)" in done.out


def test_a_module_missing_without_an_extra_is_a_fault_of_the_program(
    monkeypatch: pytest.MonkeyPatch, command_module: str
) -> None:
    declare(monkeypatch, f"{command_module}:work_command")
    with pytest.raises(ModuleNotFoundError):
        run("work")
