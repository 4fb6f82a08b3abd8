"""Inference on a model's device, for batches of items, and the division of the CPU's cores."""

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.nn.runtime import ImageOutput, ModelImages, predict_together
from eulerlora.prediction.answer import with_distances
from eulerlora.settings import Draw
from service.inference.device_errors import with_device_errors

MAX_WORKERS = 4  # more threads compete for the interpreter's lock


@dataclass(frozen=True)
class InferenceItem:
    """One image and the draw to run it with.

    pixels: (3, size, size) float32 in [0, 1], the network's input.
    """

    pixels: Tensor
    draw: Draw


class Engine:
    """Runs one model; at most `workers` threads may call it at the same time."""

    def __init__(self, model: EulerLoRA) -> None:
        self.model = model
        self.pass_key: Hashable = model.runtime.pass_key
        """Equal for engines whose items can share a batch, whatever their methods are."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.config.name

    @property
    def max_rows_per_pass(self) -> int:
        """Maximum number of rows of one forward pass; a larger batch runs in several passes."""
        return self.model.runtime.max_rows_per_pass

    @property
    def workers(self) -> int:
        """The number of worker threads that should run batches at the same time.

        On a CPU, several batches with few cores each have a higher throughput than one batch
        with all cores, which must synchronise after every operation. A compiled network is
        specialised for one number of cores.
        """
        if self.model.device.type != "cpu" or self.model.runtime.compiled:
            return 1
        return min(torch.get_num_threads(), MAX_WORKERS)

    def rows(self, samples: int) -> int:
        """Returns the rows of an item with `samples` samples per adapter."""
        return self.model.network.settings.adapters * samples

    def infer(self, items: Sequence[InferenceItem]) -> list[ImageOutput]:
        """Returns the output for each item, from one batch.

        Items of different modes and numbers of samples share the batch. Raises OutOfMemory, and
        DeviceFailed if the device is lost.
        """
        return infer_together([(self, items)])[0]

    def images(self, items: Sequence[InferenceItem]) -> ModelImages:
        """Returns the items as a batch for this model, on its device."""
        model = self.model
        pixels = torch.stack([item.pixels for item in items]).to(model.device)
        draws = [item.draw for item in items]
        return ModelImages(model.runtime, pixels, draws, model.config.temperature)


def infer_together(
    batch: Sequence[tuple[Engine, Sequence[InferenceItem]]],
) -> list[list[ImageOutput]]:
    """Returns the outputs for the items of each engine, from passes that all engines share.

    They have feature distances if the model has feature statistics. The engines have equal
    `pass_key`s. Raises as `Engine.infer`.
    """
    outputs = with_device_errors(
        lambda: predict_together([engine.images(items) for engine, items in batch])
    )
    return [
        with_distances(results, engine.model.feature_distance)
        for (engine, _), results in zip(batch, outputs, strict=True)
    ]


class CoreAllocation:
    """Divides the CPU's cores among the passes that run at the same time.

    count: the number of cores, by default that of torch.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = torch.get_num_threads() if count is None else count
        self._passes = 0
        self._lock = threading.Lock()

    @contextmanager
    def allocate(self, parts: int = 1) -> Iterator[int]:
        """Sets and yields the number of cores of a pass in this thread.

        A pass gets an equal part of the cores; passes that started earlier keep their number.
        parts: the number of passes to expect, for each of which it leaves its part.
        torch's number of threads is a setting of the calling thread.
        """
        with self._lock:
            self._passes += 1
            cores = max(1, self._count // max(parts, self._passes))
        if cores != torch.get_num_threads():
            torch.set_num_threads(cores)
        try:
            yield cores
        finally:
            with self._lock:
                self._passes -= 1
