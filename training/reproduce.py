"""Runs all trainings of a table, each in a process of its own, and keeps every device busy."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from training.table_runs import TableRun

POLL_S = 0.2


@dataclass(frozen=True)
class Worker:
    """A training process at work on a run; its output goes to the run's log."""

    run: TableRun
    process: subprocess.Popen[bytes]
    log: TextIO

    @property
    def failure(self) -> str:
        """The last line that the process left, with the log's place."""
        lines = Path(self.log.name).read_text(errors="replace").strip().splitlines()
        return f"{self.run.name} failed: {lines[-1] if lines else 'no output'} ({self.log.name})"


def log_file(run: TableRun) -> Path:
    """Where the output of a run's process goes: beside its folder."""
    return run.out.with_name(f"{run.out.name}.log")


def train_all(runs: Sequence[TableRun], data: Path, devices: Sequence[str]) -> list[str]:
    """Trains the unfinished runs, one at a time on each device; broken ones continue.

    devices: one named twice has two runs at a time; those on "cpu" share its threads. A run that
    fails does not end the others. Returns a line about each failure. On Ctrl-C every process keeps
    its state, which is waited for, before KeyboardInterrupt is raised.
    """
    waiting = [run for run in runs if run.status != "finished"]
    total, begun = len(waiting), 0
    working: dict[int, Worker] = {}  # by the place of the device
    failures = []
    try:
        while waiting or working:
            for place, device in enumerate(devices):
                if waiting and place not in working:
                    begun += 1
                    threads = _threads(device, devices)
                    working[place] = _start(waiting.pop(0), data, device, threads)
                    _tell(f"run {begun} of {total}: {working[place].run.name} on {device}")
            for place, worker in list(working.items()):
                if worker.process.poll() is not None:
                    del working[place]
                    worker.log.close()
                    if worker.process.returncode == 0:
                        _tell(f"{worker.run.name} done")
                    else:
                        failures.append(worker.failure)
                        _tell(failures[-1])
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        for worker in working.values():
            worker.process.send_signal(signal.SIGINT)
        for worker in working.values():
            worker.process.wait()
        raise
    return failures


def all_devices() -> list[str]:
    """Every CUDA device of this machine, or its CPU."""
    count = torch.cuda.device_count()
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def command_of(run: TableRun, data: Path, device: str) -> list[str]:
    """The command line that trains a run."""
    overrides = [part for each in run.recipe.overrides for part in ("--set", each)]
    return [
        *(sys.executable, "-m", "eulerlora", "train", str(run.file)),
        *("--variant", str(run.recipe.variant), "--data", str(data), "--out", str(run.out)),
        *("--device", device, "--resume", *overrides),
    ]


def _threads(device: str, devices: Sequence[str]) -> int:
    """torch's CPU threads for a run on one of `devices`."""
    return max(1, torch.get_num_threads() // devices.count(device))


def _start(run: TableRun, data: Path, device: str, threads: int) -> Worker:
    run.out.parent.mkdir(parents=True, exist_ok=True)
    log = log_file(run).open("a")
    process = subprocess.Popen(
        command_of(run, data, device),
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C reaches it once, through us
    )
    return Worker(run, process, log)


def _tell(line: str) -> None:
    print(line, flush=True)
