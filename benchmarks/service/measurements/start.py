"""Time from the command to readiness, of the program's help, and memory when ready."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median

import torch

from benchmarks.measurement.reading import Measurement, Reading, Unit
from benchmarks.measurement.result import Target
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import ROOT, eulerlora_server
from benchmarks.service.server.process_tree import memory, tree

CPU = torch.device("cpu")
MAX_START_S = 3.0
MAX_HELP_S = 1.0
HELP = (sys.executable, "-m", "eulerlora_client", "--help")


def start(plan: Plan) -> Iterator[Reading]:
    """Starts the service several times; leaves out the first start, which fills the page cache."""
    seconds: list[float] = []
    trees: list[float] = []
    decoders: list[float] = []
    for _ in range(1 + plan.starts):
        started = time.monotonic()
        with eulerlora_server(("--precision", "auto", *plan.options)) as server:
            seconds.append(time.monotonic() - started)
            trees.append(float(memory(server.pid).pss or 0))
            decoders.append(_decoder_bytes(server.pid))
    yield _reading("start to ready", "from the command to a /readyz of 200", seconds[1:], "seconds")
    yield _reading("memory when ready", "PSS of all processes", trees[1:], "bytes")
    yield _reading("memory of a decoder when ready", "its USS", decoders[1:], "bytes")
    helps = [_help_seconds() for _ in range(1 + plan.starts)]
    yield _reading("eulerlora --help", "from the command to its end", helps[1:], "seconds")


def _decoder_bytes(pid: int) -> float:
    """Returns the memory that a decoder does not share: of the children of the fork server."""
    decoders = [process for process in tree(pid)[1:] if process.ppid() != pid]
    return median(float(process.memory_full_info().uss) for process in decoders)


def _help_seconds() -> float:
    started = time.monotonic()
    subprocess.run(HELP, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


TARGETS = {
    "start to ready": Target(bound="at most", value=MAX_START_S),
    "eulerlora --help": Target(bound="at most", value=MAX_HELP_S),
}


def _reading(name: str, what: str, values: Sequence[float], unit: Unit) -> Reading:
    measurement = Measurement(
        name=name, what=what, unit=unit, target=TARGETS.get(name), libraries=LIBRARIES
    )
    return measurement.reading(median(values), values, CPU, {})
