"""Passes that are recorded once and replayed: on a CUDA device, a graph of all kernels of a pass.

A small pass has hundreds of short kernels, and starting them one by one takes longer than they do.
A CUDA graph is started by one call, but has fixed shapes and fixed places of its inputs. It needs
neither a compiler nor Triton.

`RecordedPasses` is called like the forward pass that it records, by any number of threads, and
gives the same output up to rounding. `recorder_of` has what records on a device; on a CPU that
repeats the pass, which gains nothing but runs the same code.
"""

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import NetworkOutput
from eulerlora.nn.rows import Rows, padded

__all__ = ["Forward", "RecordedPasses", "Recorder", "Recording", "recorder_of"]

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor, Rows, RowDraws], NetworkOutput]
"""(images, rows, draws) -> output, as `AdaptedVisionTransformer.outputs`."""


@dataclass(frozen=True)
class Recording:
    """A recorded pass.

    Attributes:
        output: Overwritten by every replay.
        replay: Runs the pass on what its inputs hold now.
    """

    output: NetworkOutput
    replay: Callable[[], None]


class Recorder(ABC):
    """Records passes of one network on a device."""

    @abstractmethod
    def record(self, run: Callable[[], NetworkOutput]) -> Recording:
        """Records `run`, which reads and writes the same places in memory every time."""

    @abstractmethod
    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The device runs the work of the block after that of the blocks before it."""


class _Repetition(Recorder):
    """Repeats the pass."""

    def record(self, run: Callable[[], NetworkOutput]) -> Recording:
        output = run()

        def replay() -> None:
            for values, new in zip(output, run(), strict=True):
                values.copy_(new)

        return Recording(output, replay)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        yield


class _CudaGraphs(Recorder):
    """Records CUDA graphs, which share the memory of their activations."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # the default one cannot record
        self._pool = torch.cuda.graph_pool_handle()
        self._done = torch.cuda.Event()

    def record(self, run: Callable[[], NetworkOutput]) -> Recording:
        run()  # libraries choose kernels and allocate what they keep
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._stream,
            capture_error_mode="thread_local",  # other threads may use the device
        ):
            output = run()
        return Recording(output, graph.replay)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)
            yield
            self._done.record(stream)


def recorder_of(device: torch.device) -> Recorder:
    return _CudaGraphs(device) if device.type == "cuda" else _Repetition()


class RecordedPasses:
    """Records a pass for some row counts, and replays it for all rows.

    The first pass with a row count, and with other names of draws or another number of groups, is
    recorded. The inputs are copied to places that all recordings share, and every group is padded
    to its share of the next row count. A pass of more rows runs without a recording, and so do all
    passes after a recording has failed, as it does for a method that waits for the device.

    Args:
        forward: Of a pass whose rows have no counts.
        counts: Row counts, ascending.
        recorder: Of the device of the inputs.
    """

    def __init__(self, forward: Forward, counts: Sequence[int], recorder: Recorder) -> None:
        self._forward, self._counts, self._recorder = forward, counts, recorder
        self._inputs: dict[Hashable, _Inputs] = {}  # of the most rows, by the names of the draws
        self._recordings: dict[Hashable, Recording] = {}
        self._lock = threading.Lock()
        self._failed = False

    @torch.inference_mode()
    def __call__(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        if self._failed or len(rows) > self._counts[-1]:
            return self._forward(images, rows, draws)
        groups = len(rows.positions)
        size = self._counts[bisect_left(self._counts, len(rows))] // groups
        given = _Inputs(images, rows.padded(groups, size), draws)
        with self._lock, self._recorder.in_turn():
            fixed = self._inputs.get(draws.names)
            if fixed is None:
                fixed = self._inputs[draws.names] = given.padded(self._counts[-1])
            inputs = fixed.first(groups, size)
            inputs.fill(given)
            recording = self._recording(inputs)
            if recording is not None:
                recording.replay()
                return NetworkOutput(*(values[: len(rows)].clone() for values in recording.output))
        return self._forward(images, rows, draws)

    def _recording(self, inputs: "_Inputs") -> Recording | None:
        key = inputs.draws.names, inputs.rows.positions.shape
        if key not in self._recordings:
            try:
                self._recordings[key] = self._recorder.record(
                    lambda: self._forward(inputs.images, inputs.rows, inputs.draws)
                )
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                logger.warning("passes run without a graph, because one failed: %s", reason)
                self._failed = True
                self._recordings.clear()
                self._inputs.clear()
                return None
        return self._recordings[key]


@dataclass(frozen=True)
class _Inputs:
    images: Tensor
    rows: Rows
    draws: RowDraws

    @property
    def tensors(self) -> list[Tensor]:
        draws = (*self.draws.blocks.values(), *self.draws.head.values())
        rows = self.rows
        return [self.images, rows.image, rows.adapter, rows.positions, *draws]

    def padded(self, count: int) -> "_Inputs":
        """With the positions in one dimension, of which `first` takes as many as there are rows."""
        image, adapter, positions = (
            padded(values, count)
            for values in (self.rows.image, self.rows.adapter, self.rows.positions.flatten())
        )
        rows = Rows(image, adapter, (), positions)
        return _Inputs(padded(self.images, count), rows, self.draws.padded(count))

    def first(self, groups: int, size: int) -> "_Inputs":
        count, rows = groups * size, self.rows
        positions = rows.positions[:count].view(groups, size)
        rows = Rows(rows.image[:count], rows.adapter[:count], (), positions)
        return _Inputs(self.images[:count], rows, self.draws.rows(slice(count)))

    def fill(self, other: "_Inputs") -> None:
        """Copies the values of a pass of fewer rows, followed by zeros."""
        for values, given in zip(self.tensors, other.tensors, strict=True):
            values[: len(given)].copy_(given)
            values[len(given) :].zero_()
