"""The `eulerlora` program: its commands come from the installed packages' entry points."""

import signal
import sys
from importlib.metadata import entry_points
from typing import Any, NoReturn

import click

from eulerlora.errors import EulerLoRAError
from eulerlora.openmp import choose_waiting

ENTRY_POINTS = "eulerlora.commands"


class Program(click.Group):
    """A group whose commands are loaded one at a time, so that each starts fast.

    They are the entry points of `entry_group`, from whichever packages declare them.
    """

    def __init__(self, *args: Any, entry_group: str = ENTRY_POINTS, **options: Any) -> None:
        super().__init__(*args, **options)
        self.entry_group = entry_group

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry_points(group=self.entry_group).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = entry_points(group=self.entry_group, name=cmd_name)
        command: click.Command | None = next((each.load() for each in found), None)
        return command


@click.group("eulerlora", cls=Program)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="eulerlora")
def program(debug: bool) -> None:
    """Uncertainty-aware image classification with sampled low-rank adapters."""


def main() -> None:
    """Runs the program. Exit status 0 done, 1 the work failed, 2 wrong usage."""
    signal.signal(signal.SIGTERM, _end)
    choose_waiting()
    debug = "--debug" in sys.argv[1:]
    try:
        sys.exit(program(standalone_mode=False))
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 1)
    except (EulerLoRAError, OSError) as error:
        if debug:
            raise
        _fail(str(error), 1)


def _end(*_: object) -> NoReturn:
    """For SIGTERM, which the first process of a container would otherwise not even notice.

    A command with something to lose has its own way with it.
    """
    sys.exit(128 + signal.SIGTERM)


def _fail(message: str, status: int) -> NoReturn:
    print("eulerlora: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)
