"""The training of a run in a process of its own, with its log.

Imports no torch, so that a process that only waits for a training is small.
"""

import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch
    from training.reproduction.runs import TableRun

LOCKED = "locked by another program"


@dataclass(frozen=True)
class Training:
    """The training of a run: its name, command line and log, and the last file that it writes."""

    name: str
    command: tuple[str, ...]
    log: Path
    report: Path


@dataclass(frozen=True)
class TrainingProcess:
    """The process of a training; its output is in the log from byte `log_offset` on."""

    training: Training
    process: subprocess.Popen[bytes]
    log_offset: int

    @property
    def failure(self) -> str | None:
        """The signal that killed the process, or its last line of output; with the log's path.

        None if the process succeeded.
        """
        status, log = self.process.returncode, self.training.log
        if status == 0:
            return None
        lines = log.read_bytes()[self.log_offset :].decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {status} without output"
        if status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        return f"{self.training.name} failed: {reason} ({log})"


def training_of(run: "TableRun", data: Path, device: str) -> Training:
    """Returns how to train a run on a device."""
    overrides = [part for override in run.recipe.overrides for part in ("--set", override)]
    command = (
        *(sys.executable, "-m", "eulerlora_client", "train", str(run.file)),
        *("--variant", str(run.recipe.variant), "--data", str(data), "--out", str(run.out)),
        *("--device", device, "--resume", *overrides),
    )
    return Training(run.name, command, log_file(run), run.report_file)


def log_file(run: "TableRun") -> Path:
    """Returns the path of the run's log, beside its folder."""
    return run.out.with_name(f"{run.out.name}.log")


def start_training(training: Training, threads: int) -> TrainingProcess:
    """Starts a training. Raises BlockingIOError if another program holds the lock on its log."""
    training.log.parent.mkdir(parents=True, exist_ok=True)
    with training.log.open("a") as log:
        log_offset = log.tell()
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process inherits the lock
        process = subprocess.Popen(
            training.command,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the scheduler forwards Ctrl-C
        )
        return TrainingProcess(training, process, log_offset)


def report(line: str) -> None:
    """Prints a line of progress."""
    print(line, flush=True)
