"""Scheduler of runs on a Ray cluster; the extra `ray` installs Ray.

Each run is a task that starts the training as a process on some machine. If the machine or its
worker process is lost, Ray starts the task again elsewhere and the training continues from the
state in the run's folder. So all machines need the installation, the data and the folder of the
runs at the same paths, and the file system of the runs must lock files across machines.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eulerlora_contract.errors import SettingsError
from eulerlora_lab.tables.local import (
    LOCKED,
    POLL_S,
    TrainingCommand,
    TrainingProcess,
    bound_to_caller,
    start_training,
    training_of,
)

if TYPE_CHECKING:  # an extra; imports torch
    from ray import ObjectRef

    from eulerlora_lab.tables.table import TableRun


@dataclass(frozen=True)
class RunResources:
    """What a run reserves of a machine.

    Attributes:
        device: One GPU if it is cuda; None for cuda if the cluster has a GPU, else cpu.
        lock_wait_s: Longest wait for another program to release a run: it saves its state, and NFS
            keeps its lock.
    """

    device: Literal["cpu", "cuda"] | None = None
    cpus: int = 1
    lock_wait_s: float = 120.0


_RunEnd = tuple[str, str | None]
"""The machine where a run ended, and why it failed, in one line; None if it did not."""


def check_ray() -> None:
    """Checks that Ray is installed.

    Raises:
        SettingsError: If it is not.
    """
    if find_spec("ray") is None:
        raise SettingsError("--engine ray: expected ray; run pip install 'eulerlora-lab[ray]'")


def train_on_cluster(runs: "Sequence[TableRun]", data: Path, resources: RunResources) -> list[str]:
    """Trains the unfinished runs on a Ray cluster, as many at a time as fit; resumes them.

    Uses the cluster of RAY_ADDRESS or the one that runs on this machine; otherwise starts one on
    this machine. Results and errors are those of `local.train_all`.
    """
    import ray  # noqa: PLC0415 - an extra

    pending = [replace(run, out=run.out.resolve()) for run in runs if run.status != "finished"]
    if not pending:
        return []
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports nothing to the authors of Ray
    is_connected = ray.is_initialized()
    if not is_connected:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        return _train(pending, data.resolve(), resources)
    finally:
        if not is_connected:
            ray.shutdown()


def _train(runs: "Sequence[TableRun]", data: Path, resources: RunResources) -> list[str]:
    import ray  # noqa: PLC0415 - an extra

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    device = resources.device or ("cuda" if any("GPU" in node for node in machines) else "cpu")
    options: dict[str, Any] = {
        "num_cpus": resources.cpus,
        "num_gpus": int(device == "cuda"),
        "max_retries": 10,
        "max_calls": 1,  # a worker process for each run
        "scheduling_strategy": "SPREAD",
    }
    print(f"{len(runs)} runs on {len(machines)} machines of a Ray cluster, on {device}", flush=True)
    if not any(
        node.get("CPU", 0) >= resources.cpus and (device == "cpu" or node.get("GPU", 0) >= 1)
        for node in machines
    ):
        print(
            f"waiting for a machine with {resources.cpus} CPUs and the device {device}", flush=True
        )
    task = ray.remote(**options)(_train_run)
    trainings = [training_of(run, data, device) for run in runs]
    started = {
        task.options(name=training.name).remote(training, resources): training.name
        for training in trainings
    }
    try:
        return _failures(started)
    except (KeyboardInterrupt, SystemExit):
        for reference in started:
            ray.cancel(reference)  # raises KeyboardInterrupt in the task
        ray.wait(list(started), num_returns=len(started))
        raise


def _failures(started: "dict[ObjectRef[_RunEnd], str]") -> list[str]:
    import ray  # noqa: PLC0415 - an extra
    from ray.exceptions import RayError  # noqa: PLC0415

    failures: list[str] = []
    waiting = list(started)
    while waiting:
        (reference,), waiting = ray.wait(waiting)
        name = started[reference]
        try:
            host, failure = ray.get(reference)
        except RayError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            host, failure = "", f"{name} failed: {reason}"
        failures += [] if failure is None else [failure]
        print(failure or f"{name} done on {host}", flush=True)
    return failures


def _train_run(training: TrainingCommand, resources: RunResources) -> _RunEnd:
    host = socket.gethostname()
    if training.report.exists():  # an earlier attempt ended, but its answer was lost
        return host, None
    try:
        process = _start(training, resources)
    except BlockingIOError:
        return host, f"{training.name} failed: {LOCKED}"
    try:
        while process.process.poll() is None:
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        process.process.send_signal(signal.SIGINT)
        process.process.wait()
        raise
    return host, process.failure


def _start(training: TrainingCommand, resources: RunResources) -> TrainingProcess:
    bound_training = replace(training, command=bound_to_caller(training.command))
    end = time.monotonic() + resources.lock_wait_s
    while True:
        try:
            return start_training(bound_training, resources.cpus)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(POLL_S)
