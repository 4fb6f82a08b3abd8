"""Training processes, and the scheduler of runs on the devices of this machine.

`python -m eulerlora_lab.tables.local PARENT COMMAND...` runs a command that gets SIGINT when the
process PARENT ends, also if it is killed: a training then saves its state and releases its log, so
that it can continue on another machine. Linux only.

Importing this module imports no torch, so that a process that only waits for a training is small.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eulerlora_contract.processes import child_environment, python_command

if TYPE_CHECKING:  # imports torch
    from eulerlora_lab.tables.table import TableRun

LOCKED = "locked by another program"
POLL_S = 0.2
_MODULE = "eulerlora_lab.tables.local"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_VARIABLES = (
    "CUDA_", "EULERLORA_CACHE", "HF_", "HTTPS_PROXY", "NO_PROXY", "NVIDIA_", "PYTORCH_", "TORCH_",
    "XDG_CACHE_HOME", "https_proxy", "no_proxy",
)  # fmt: skip
"""How the variables begin that a training gets: of devices, caches and downloads."""


@dataclass(frozen=True)
class TrainingCommand:
    """The training of a run.

    Attributes:
        report: The last file that it writes.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    report: Path


@dataclass(frozen=True)
class TrainingProcess:
    """The process of a training.

    Attributes:
        log_offset: First byte of its output in the log.
    """

    training: TrainingCommand
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


def training_of(run: "TableRun", data: Path, device: str) -> TrainingCommand:
    overrides = [part for override in run.recipe.overrides for part in ("--set", override)]
    arguments = (
        *("train", str(run.file)),
        *("--variant", str(run.recipe.variant), "--data", str(data), "--out", str(run.out)),
        *("--device", device, "--resume", *overrides),
    )
    command = python_command("eulerlora_contract", *arguments)
    return TrainingCommand(run.name, command, run.log, run.report_file)


def start_training(training: TrainingCommand, threads: int) -> TrainingProcess:
    """Starts a training.

    Raises:
        BlockingIOError: If another program holds the lock on its log.
    """
    training.log.parent.mkdir(parents=True, exist_ok=True)
    variables = {name: text for name, text in os.environ.items() if name.startswith(_VARIABLES)}
    with training.log.open("a") as log:
        log_offset = log.tell()
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process inherits the lock
        process = subprocess.Popen(
            training.command,
            env=child_environment(variables | {"OMP_NUM_THREADS": str(threads)}),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the scheduler forwards Ctrl-C
        )
        return TrainingProcess(training, process, log_offset)


def bound_to_caller(command: Sequence[str]) -> tuple[str, ...]:
    """A command line that runs `command` until the calling thread ends."""
    return python_command(_MODULE, str(os.getpid()), *command)


def train_all(runs: "Sequence[TableRun]", data: Path, devices: Sequence[str]) -> list[str]:
    """Trains the unfinished runs, one at a time on each device; resumes interrupted runs.

    Other runs continue if a run fails or is locked by another program. A device listed twice has
    two runs at a time; runs on "cpu" share its threads.

    Returns:
        One line for each run that failed, or that another program has locked and not finished in
        the meantime.

    Raises:
        KeyboardInterrupt: On Ctrl-C, when all processes have saved their state; on SIGTERM
            SystemExit.
    """
    pending = [run for run in runs if run.status != "finished"]
    total, started = len(pending), 0
    running: dict[int, TrainingProcess] = {}  # by index of the device
    failures: list[str] = []
    locked: list[TableRun] = []
    try:
        while pending or running:
            for index, device in enumerate(devices):
                if pending and index not in running:
                    started, run = started + 1, pending.pop(0)
                    place = f"run {started} of {total}"
                    if run.status == "finished":
                        print(f"{place}: {run.name} done by another program", flush=True)
                        continue
                    print(f"{place}: {run.name} on {device}", flush=True)
                    training = training_of(run, data, device)
                    try:
                        running[index] = start_training(training, _threads(device, devices))
                    except BlockingIOError:
                        locked.append(run)
                        print(f"{run.name} is {LOCKED}", flush=True)
            for index, ending in list(running.items()):
                if ending.process.poll() is not None:
                    del running[index]
                    failure = ending.failure
                    failures += [] if failure is None else [failure]
                    print(failure or f"{ending.training.name} done", flush=True)
            time.sleep(POLL_S)
    except (KeyboardInterrupt, SystemExit):
        for interrupted in running.values():
            interrupted.process.terminate()  # it may ignore SIGINT, as in the background
        for interrupted in running.values():
            interrupted.process.wait()
        raise
    unfinished = [run for run in locked if run.status != "finished"]
    return failures + [f"{run.name} failed: {LOCKED}" for run in unfinished]


def _threads(device: str, devices: Sequence[str]) -> int:
    import torch  # noqa: PLC0415

    return max(1, torch.get_num_threads() // devices.count(device))


def _run_bound() -> None:
    """Replaces this process by the command of the command line, bound to its parent."""
    parent, *command = sys.argv[1:]
    # A program started by Ray may block or ignore SIGINT; both would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT) != 0:
        sys.exit("prctl failed")
    if os.getppid() != int(parent):
        sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    _run_bound()
