"""Runs the `eulerlora` program in the test process."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from eulerlora_contract.program import main


@dataclass(frozen=True)
class Completed:
    """Exit status and output of a run of the program."""

    status: int
    out: str
    err: str


def run(*arguments: str | Path) -> Completed:
    """Runs `eulerlora ARGUMENTS` in this process, which saves the start of an interpreter."""
    out, err = StringIO(), StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch("sys.argv", ["eulerlora", *map(str, arguments)]),
        patch("eulerlora_contract.program._signals", []),  # this process goes on
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Completed(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def succeed(*arguments: str | Path) -> Completed:
    """Runs `eulerlora ARGUMENTS`, which must end with status 0."""
    done = run(*arguments)
    assert done.status == 0, done.err
    return done


def refusal(*arguments: str | Path, status: int = 1) -> str:
    """Runs `eulerlora ARGUMENTS`, which must end so; returns its only line of error."""
    done = run(*arguments)
    assert done.status == status, done.err
    (line,) = done.err.strip().splitlines()
    return line
