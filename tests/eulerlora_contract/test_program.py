"""The program: commands, missing extras, exit status and one-line errors."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import click
import pytest
import torch

from eulerlora_contract import program
from eulerlora_contract.errors import CheckpointError
from tests.program import run


def test_every_command_is_in_one_section_and_has_a_line_of_help() -> None:
    done = run("--help")
    assert done.status == 0
    listed = re.findall(r"^  ([a-z][a-z-]*)  +(?:\S+ ){2,}", done.out, re.MULTILINE)
    assert sorted(listed) == sorted(entry_points(group="eulerlora.commands").names)
    assert "\nCommands:\n" not in done.out  # those of no section


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of all commands below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name)


@pytest.mark.parametrize("names", list(commands(program.program)), ids=" ".join)
def test_the_help_of_a_command_has_examples_that_it_accepts(names: tuple[str, ...]) -> None:
    done = run(*names, "--help")
    assert done.status == 0
    lines = map(str.strip, done.out.partition("Example")[2].splitlines())
    examples = [line.partition(">")[0] for line in lines if line.startswith("eulerlora ")]
    assert examples
    command: click.Command = program.program
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    for example in examples:
        _, *arguments = shlex.split(example)
        assert tuple(arguments[: len(names)]) == names
        command.make_parser(click.Context(command)).parse_args(arguments[len(names) :])


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["predict"], ["serve", "--nonsense"], ["predict", "--samples", "0"]]
)
def test_wrong_usage_is_status_2_and_one_line(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


@pytest.mark.parametrize("group", [[], ["keys"]])
def test_a_group_without_a_command_shows_its_help_in_lines(group: list[str]) -> None:
    done = run(*group)
    assert (done.status, done.err) == (2, run(*group, "--help").out)


def test_failed_work_is_status_1_and_one_line(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.touch()
    done = run("predict", tmp_path / "absent", image)
    assert done.status == 1
    assert len(done.err.splitlines()) == 1
    assert f"{tmp_path / 'absent'}: " in done.err


def test_a_deleted_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    done = run("serve", "default")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "working directory" in done.err


def test_control_characters_in_a_message_are_escaped(tmp_path: Path) -> None:
    checkpoint = tmp_path / "\x1b]0;title\x07\x9b1m\u202e"
    checkpoint.mkdir()
    (tmp_path / "image.png").touch()
    done = run("predict", checkpoint, tmp_path / "image.png")
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert line.isprintable()
    assert "\\x1b]0;title\\x07\\x9b1m\\u202e" in line


EARLY = """
import signal, sys
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="eulerlora")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also below nohup
before = set(sys.modules)
main = script.load()
assert "click" not in set(sys.modules) - before
import eulerlora_contract.program as program
program.main = lambda: print(signal.getsignal(signal.SIGHUP).name)
main()
"""


@pytest.mark.parametrize(
    ("arguments", "handling"),
    [(["serve"], "SIG_IGN"), (["--debug", "serve", "folder"], "SIG_IGN"), (["train"], "SIG_DFL")],
)
def test_the_service_ignores_sighup_before_the_program_is_imported(arguments, handling) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (handling, "")


def test_debug_leaves_an_error_to_the_interpreter_which_shows_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image.png"
    image.touch()
    arguments = ["--debug", "predict", str(tmp_path / "absent"), str(image)]
    monkeypatch.setattr(sys, "argv", ["eulerlora", *arguments])
    with pytest.raises(CheckpointError):
        program.main()


ROOT = Path(__file__).parents[2]
LINE = "eulerlora: work requires the module absent_module, which is not installed; "


@click.command("work")
def work_command() -> None:
    """Imports a module that is not installed."""
    import absent_module  # type: ignore[import-not-found]  # noqa: F401, PLC0415


GROUP = "eulerlora.commands"


def declare(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Makes `work` the program's only command."""
    command = EntryPoint("work", target, GROUP)
    monkeypatch.setattr(
        program, "entry_points", lambda **selected: EntryPoints([command]).select(**selected)
    )


@pytest.fixture
def command_module(monkeypatch: pytest.MonkeyPatch) -> str:
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


HIDING = {
    "training/__init__.py": "train",  # such as a folder of pictures with a stray module
    "service.py": "serve",
    "eulerlora.py": "predict",
}


@pytest.fixture(params=HIDING)
def hiding(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file that has the name of a package, and a command that needs the package."""
    file = tmp_path / request.param
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('foreign code ran')")
    return file, HIDING[request.param]


def test_a_file_of_the_working_folder_hides_no_package(hiding: tuple[Path, str], tmp_path) -> None:
    _, command = hiding
    done = subprocess.run(
        [sys.executable, "-m", "eulerlora_contract", command, "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")


def test_a_file_that_hides_a_package_is_named(hiding: tuple[Path, str], tmp_path) -> None:
    file, command = hiding
    file.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "eulerlora_contract", command, "--help"],
        cwd="/", env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    place = file.parent if file.name == "__init__.py" else file
    assert f"{place} hides the package {place.stem}" in line
    assert "install" not in line


@pytest.mark.parametrize(
    ("arguments", "requirement"),
    [
        (["serve", "checkpoint/", "--port", "1"], "eulerlora[serve]"),
        (["predict"], "eulerlora"),
        (["train", "--help"], "eulerlora[train]"),
        (["triage", "lesion.jpg"], "eulerlora-clinic"),
    ],
)
def test_a_command_of_the_other_distribution_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], requirement: str
) -> None:
    monkeypatch.setattr(program, "entry_points", lambda **_: EntryPoints([]))
    done = run(*arguments)
    assert (done.status, done.out) == (1, "")
    assert f"pip install '{requirement}'" in done.err


def test_every_command_of_a_distribution_names_it_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "entry_points", lambda **_: EntryPoints([]))
    for folder in (ROOT, ROOT / "clinic", ROOT / "lab"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for name, target in project["entry-points"]["eulerlora.commands"].items():
            distribution = project["name"] + target.partition(" ")[2]
            assert f"pip install '{distribution}'" in run(name).err


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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 69 GiB."), "CUDA out of"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_an_exhausted_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def fail() -> NoReturn:
        raise error

    module = ModuleType("installed_commands")
    module.__dict__["work_command"] = click.Command("work", callback=fail)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    declare(monkeypatch, f"{module.__name__}:work_command")
    done = run("work")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert line in done.err
