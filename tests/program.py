"""The `eulerlora` program, run in the tests' own process."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from eulerlora_client.commands.program import main


@dataclass(frozen=True)
class Done:
    """How a run of the program ended, and what it printed."""

    status: int
    out: str
    err: str


def run(*arguments: str | Path) -> Done:
    """Runs `eulerlora ARGUMENTS`; in this process, which spares the start of another one."""
    out, err = StringIO(), StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch("sys.argv", ["eulerlora", *map(str, arguments)]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())
