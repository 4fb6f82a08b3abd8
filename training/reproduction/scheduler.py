"""Scheduler of a table's runs: one process for each run, one or more runs on each device."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.reproduction.runs import TableRun

POLL_S = 0.2


@dataclass(frozen=True)
class TrainingProcess:
    """The training process of a run; its output is in the run's log from byte `log_offset` on."""

    run: TableRun
    process: subprocess.Popen[bytes]
    log_offset: int

    @property
    def failure(self) -> str:
        """The signal that killed the process, or its last line of output; with the log's path."""
        status = self.process.returncode
        log = log_file(self.run)
        lines = log.read_bytes()[self.log_offset :].decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {status} without output"
        if status < 0:
            reason = f"killed by {signal.Signals(-status).name}"
        return f"{self.run.name} failed: {reason} ({log})"


def log_file(run: TableRun) -> Path:
    """Returns the path of the run's log, beside its folder."""
    return run.out.with_name(f"{run.out.name}.log")


def train_all(runs: Sequence[TableRun], data: Path, devices: Sequence[str]) -> list[str]:
    """Trains the unfinished runs, one at a time on each device; resumes interrupted runs.

    devices: a device listed twice has two runs at a time; runs on "cpu" share its threads. Other
    runs continue if a run fails or is locked by another program. Returns one line for each such
    run. Ctrl-C interrupts all processes and waits until they have saved their state; then
    KeyboardInterrupt is raised.
    """
    pending = [run for run in runs if run.status != "finished"]
    total, started = len(pending), 0
    running: dict[int, TrainingProcess] = {}  # by index of the device
    failures = []
    try:
        while pending or running:
            for index, device in enumerate(devices):
                if pending and index not in running:
                    started, run = started + 1, pending.pop(0)
                    _report(f"run {started} of {total}: {run.name} on {device}")
                    try:
                        running[index] = _start(run, data, device, _threads(device, devices))
                    except BlockingIOError:
                        failures.append(f"{run.name} failed: locked by another program")
                        _report(failures[-1])
            for index, training in list(running.items()):
                if training.process.poll() is not None:
                    del running[index]
                    if training.process.returncode == 0:
                        _report(f"{training.run.name} done")
                    else:
                        failures.append(training.failure)
                        _report(failures[-1])
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        for training in running.values():
            training.process.send_signal(signal.SIGINT)
        for training in running.values():
            training.process.wait()
        raise
    return failures


def all_devices() -> list[str]:
    """Returns the CUDA devices of this machine, or the CPU if there are none."""
    count = torch.cuda.device_count()
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def training_command(run: TableRun, data: Path, device: str) -> list[str]:
    """Returns the command line that trains a run."""
    overrides = [part for override in run.recipe.overrides for part in ("--set", override)]
    return [
        *(sys.executable, "-m", "eulerlora_client", "train", str(run.file)),
        *("--variant", str(run.recipe.variant), "--data", str(data), "--out", str(run.out)),
        *("--device", device, "--resume", *overrides),
    ]


def _threads(device: str, devices: Sequence[str]) -> int:
    """Returns the number of CPU threads for a run on one of `devices`."""
    return max(1, torch.get_num_threads() // devices.count(device))


def _start(run: TableRun, data: Path, device: str, threads: int) -> TrainingProcess:
    """Starts a run. Raises BlockingIOError if another program holds the lock on its log."""
    run.out.parent.mkdir(parents=True, exist_ok=True)
    with log_file(run).open("a") as log:
        log_offset = log.tell()
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process inherits the lock
        process = subprocess.Popen(
            training_command(run, data, device),
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # this program forwards Ctrl-C
        )
        return TrainingProcess(run, process, log_offset)


def _report(line: str) -> None:
    print(line, flush=True)
