"""Runs all trainings of a table, each in a process of its own, and keeps every device busy."""

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
class Worker:
    """A training process at work on a run; its output goes to the run's log, from `begin` on."""

    run: TableRun
    process: subprocess.Popen[bytes]
    begin: int

    @property
    def failure(self) -> str:
        """Which signal killed the process, or else the last line it left; with the log's place."""
        status = self.process.returncode
        log = log_file(self.run)
        lines = log.read_bytes()[self.begin :].decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit status {status} without a word"
        if status < 0:
            why = f"killed by {signal.Signals(-status).name}"
        return f"{self.run.name} failed: {why} ({log})"


def log_file(run: TableRun) -> Path:
    """Where the output of a run's process goes: beside its folder."""
    return run.out.with_name(f"{run.out.name}.log")


def train_all(runs: Sequence[TableRun], data: Path, devices: Sequence[str]) -> list[str]:
    """Trains the unfinished runs, one at a time on each device; broken ones continue.

    devices: one named twice has two runs at a time; those on "cpu" share its threads. A run that
    fails, or that another program is at work on, does not end the others. Returns a line about
    each of these. On Ctrl-C every process keeps its state, which is waited for, before
    KeyboardInterrupt is raised.
    """
    waiting = [run for run in runs if run.status != "finished"]
    total, begun = len(waiting), 0
    working: dict[int, Worker] = {}  # by the place of the device
    failures = []
    try:
        while waiting or working:
            for place, device in enumerate(devices):
                if waiting and place not in working:
                    begun, run = begun + 1, waiting.pop(0)
                    _tell(f"run {begun} of {total}: {run.name} on {device}")
                    try:
                        working[place] = _start(run, data, device, _threads(device, devices))
                    except BlockingIOError:
                        failures.append(f"{run.name}: another program is at work on it")
                        _tell(failures[-1])
            for place, worker in list(working.items()):
                if worker.process.poll() is not None:
                    del working[place]
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
    """Raises BlockingIOError while another program's process has the run's log."""
    run.out.parent.mkdir(parents=True, exist_ok=True)
    with log_file(run).open("a") as log:
        begin = log.tell()
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process keeps it as long as it lives
        process = subprocess.Popen(
            command_of(run, data, device),
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches it once, through us
        )
        return Worker(run, process, begin)


def _tell(line: str) -> None:
    print(line, flush=True)
