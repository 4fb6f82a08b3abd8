"""The `eulerlora` program: its commands are the entry points of the installed distributions.

Also the parameter types that commands share.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from eulerlora_contract import __version__
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import AUTO, MAX_SAMPLES, Auto

_ENTRY_POINTS = "eulerlora.commands"
_OTHER_DISTRIBUTION: Mapping[str, Sequence[str]] = {
    "eulerlora": ("predict", "convert", "backbone", "export", "import", "sign"),
    "eulerlora[serve]": ("serve", "keys"),
    "eulerlora[train]": ("train", "evaluate", "calibrate", "card", "compare"),
    "eulerlora-clinic": ("triage", "decide", "policy", "monitor"),
    "eulerlora-clinic[serve]": ("demo", "audit"),
    "eulerlora-clinic[train]": ("site",),
    "eulerlora-lab": ("onnx-backbone", "pretrain", "reproduce"),
}
"""What to install for the commands that an installation does not have."""

_MAX_SHORT_HELP = 100  # characters
_NO_MEMORY = "OutOfMemoryError"  # of torch, which not every installation has

_SECTIONS = {
    "Use": ("demo", "predict", "triage", "decide", "export"),
    "Train": ("train", "pretrain", "convert", "backbone", "onnx-backbone", "import"),
    "Measure": ("evaluate", "calibrate", "policy", "site", "card", "compare", "reproduce"),
    "Operate": ("serve", "sign", "keys", "audit", "monitor"),
}
"""The commands in the order of `eulerlora --help`; those of other distributions follow."""

PATH = click.Path(path_type=Path)
INPUT_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class SamplesParameter(click.ParamType[int | Auto]):
    """A number of samples per adapter, or `auto` in any case."""

    name = "samples"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"1-{MAX_SAMPLES}|{AUTO}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Auto:
        if str(value).lower() == AUTO:
            return AUTO
        samples: int = click.IntRange(1, MAX_SAMPLES).convert(value, param, ctx)
        return samples


class _ShareParameter(click.ParamType[float]):
    """A number above 0 and below 1. click's FloatRange accepts `nan`."""

    name = "0-1"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        share: float = click.FLOAT.convert(value, param, ctx)
        if not 0 < share < 1:
            self.fail(f"expected a number between 0 and 1, got {value}", param, ctx)
        return share


SHARE = _ShareParameter()


class Program(click.Group):
    """A group of commands that installed distributions declare as entry points.

    A command is imported when it is used. An entry point may name the extra that its command
    needs; a command without its extra fails with a line that says what to install.
    """

    def __init__(self, *args: Any, entry_group: str = _ENTRY_POINTS, **options: Any) -> None:
        super().__init__(*args, **options)
        self.entry_group = entry_group

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry_points(group=self.entry_group).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry_point in entry_points(group=self.entry_group, name=cmd_name):
            try:
                command: click.Command = entry_point.load()
            except (ImportError, AttributeError) as error:
                reason = _reason(entry_point, error)
                if reason is None:
                    raise
                return _unavailable(cmd_name, reason)
            return command
        for requirement, names in _OTHER_DISTRIBUTION.items():
            if self.entry_group == _ENTRY_POINTS and cmd_name in names:
                reason = f"{cmd_name} is not installed; run: pip install '{requirement}'"
                return _unavailable(cmd_name, reason)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands in sections; those of a smaller group in one."""
        names = self.list_commands(ctx)
        sectioned = {name for section in _SECTIONS.values() for name in section}
        others = tuple(name for name in names if name not in sectioned)
        for title, section in {**_SECTIONS, "Commands": others}.items():
            commands = [(name, self.get_command(ctx, name)) for name in section if name in names]
            lines = [
                (name, command.get_short_help_str(_MAX_SHORT_HELP))
                for name, command in commands
                if command is not None
            ]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            name = ctx.invoked_subcommand or ""
            for entry_point in entry_points(group=self.entry_group, name=name):
                if (reason := _reason(entry_point, error)) is not None:
                    raise click.ClickException(reason) from error
            raise


def _reason(entry_point: EntryPoint, error: ImportError | AttributeError) -> str | None:
    """Why a command cannot be imported: a file hides a package, or an extra is not installed.

    None for another reason.
    """
    for module in (error.name if isinstance(error, ImportError) else None, entry_point.module):
        package = (module or "").partition(".")[0]
        if package and (place := _hiding_place(package)) is not None:
            return (
                f"{place} hides the package {package} that {entry_point.name} requires; rename it, "
                "or remove its folder from PYTHONPATH"
            )
    if not isinstance(error, ModuleNotFoundError) or not entry_point.extras:
        return None
    distribution = "eulerlora" if entry_point.dist is None else entry_point.dist.name
    return (
        f"{entry_point.name} requires the module {error.name}, which is not installed; "
        f"run: pip install '{distribution}[{','.join(entry_point.extras)}]'"
    )


def _hiding_place(package: str) -> Path | None:
    """The file or folder that is imported as `package` from the working folder or PYTHONPATH.

    None for a package from elsewhere, and from the folder of this program.
    """
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was made without a file
        return None
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return None
    file = Path(spec.origin or next(iter(spec.submodule_search_locations or ())))
    place = file.parent if file.name == "__init__.py" else file
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = {Path(folder).resolve() for folder in ("", *added)} - {Path(__file__).parents[1]}
    return place if place.parent.resolve() in folders else None


def _unavailable(name: str, reason: str) -> click.Command:
    """A command that accepts all arguments and fails with `reason`."""

    def fail() -> NoReturn:
        raise click.ClickException(reason)

    accept_all = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name, accept_all, callback=fail, short_help="(not installed)", add_help_option=False
    )


@click.group(
    "eulerlora",
    cls=Program,
    epilog="\b\nExample:\n  eulerlora serve            # then open http://127.0.0.1:8000",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__)
def program(debug: bool) -> None:
    """Uncertainty-aware image classification with sampled low-rank adapters."""


def main() -> None:
    """Runs the program. Exit status: 0 success, 1 failed work, 2 wrong usage.

    An OSError, an exhausted memory, or an exception whose class has an integer `exit_status`, is
    one line on stderr.
    """
    signal.signal(signal.SIGTERM, _terminate)  # process 1 of a container would otherwise ignore it
    debug = "--debug" in sys.argv[1:]
    try:
        Path.cwd()
    except OSError as error:
        _fail(f"the working directory cannot be used ({error.strerror}); change to another", 1)
    try:
        sys.exit(program(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 1)
    except Exception as error:
        if terminated():
            _fail("interrupted", _TERMINATED)
        expected = isinstance(error, OSError | MemoryError) or type(error).__name__ == _NO_MEMORY
        default = 1 if expected else None
        status = getattr(type(error), "exit_status", default)
        if debug or not isinstance(status, int):
            raise
        _fail(str(error) or "not enough memory", status)


_TERMINATED = 128 + signal.SIGTERM
_signals: list[int] = []


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    _signals.append(number)
    sys.exit(_TERMINATED)


def terminated() -> bool:
    """Whether SIGTERM ended this program.

    Compiled code that calls Python, such as that of safetensors, may raise another exception in
    place of the SystemExit of the signal.
    """
    return bool(_signals)


def _fail(message: str, status: int) -> NoReturn:
    """Prints one line, in which control characters of names and of responses are escaped."""
    line = " ".join(message.split())
    print(f"eulerlora: {printable(line, sys.stderr.encoding or 'utf-8')}", file=sys.stderr)
    sys.exit(status)
