"""Scheduler of runs on this machine: one or more runs at a time on each device."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from training.reproduction.runs import TableRun
from training.scheduling.process import (
    LOCKED,
    TrainingProcess,
    report,
    start_training,
    training_of,
)

POLL_S = 0.2


def train_all(runs: Sequence[TableRun], data: Path, devices: Sequence[str]) -> list[str]:
    """Trains the unfinished runs, one at a time on each device; resumes interrupted runs.

    devices: a device listed twice has two runs at a time; runs on "cpu" share its threads. Other
    runs continue if a run fails or is locked by another program. Returns one line for each such
    run, unless the other program has finished it in the meantime. KeyboardInterrupt and SystemExit,
    which Ctrl-C and SIGTERM raise in `eulerlora`, interrupt all processes and wait until they have
    saved their state; then they are raised again.
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
                    if run.status == "finished":
                        report(f"run {started} of {total}: {run.name} done by another program")
                        continue
                    report(f"run {started} of {total}: {run.name} on {device}")
                    training = training_of(run, data, device)
                    try:
                        running[index] = start_training(training, _threads(device, devices))
                    except BlockingIOError:
                        locked.append(run)
                        report(f"{run.name} is {LOCKED}")
            for index, ending in list(running.items()):
                if ending.process.poll() is not None:
                    del running[index]
                    failure = ending.failure
                    failures += [] if failure is None else [failure]
                    report(failure or f"{ending.training.name} done")
            time.sleep(POLL_S)
    except (KeyboardInterrupt, SystemExit):
        for interrupted in running.values():
            interrupted.process.terminate()  # it may ignore SIGINT, as in the background
        for interrupted in running.values():
            interrupted.process.wait()
        raise
    unfinished = [run for run in locked if run.status != "finished"]
    return failures + [f"{run.name} failed: {LOCKED}" for run in unfinished]


def all_devices() -> list[str]:
    """Returns the CUDA devices of this machine, or the CPU if there are none."""
    count = torch.cuda.device_count()
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def _threads(device: str, devices: Sequence[str]) -> int:
    """Returns the number of CPU threads for a run on one of `devices`."""
    return max(1, torch.get_num_threads() // devices.count(device))
