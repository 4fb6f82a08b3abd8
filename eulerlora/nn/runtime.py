"""Execution of a network: device, precision, compilation, and the rows of a pass.

A `Runtime` runs a network on a device, `TorchRuntime` by torch; `other_runtime` makes those of
other libraries. `predict_adaptively` runs the rounds of `samples="auto"` for the images of a batch.
"""

import math
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from typing import ClassVar

import torch
from torch import Tensor

from eulerlora.nn.graphs import Forward, RecordedPasses, recorder_of
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import (
    AdaptedVisionTransformer,
    NetworkOutput,
    RowNetwork,
    predict_images,
    round_products,
)
from eulerlora.nn.rows import Rows, padded
from eulerlora.sampling.adaptive import AdaptiveSampling, StoppingRule
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.ood_scores import FeatureDistance
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import DEFAULT_RUNTIME, UNSCALED, Draw, RuntimeSettings, Temperatures
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import RuntimeName

_ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
"""Row counts for which a network is compiled or recorded; a pass is padded to the next of them.
With more rows, a GPU is busy without a graph.
"""

_MAX_GRAPHS = 1_000
"""Number of graphs that a process may compile, of all networks together; one more is an error.
Beyond its own limit of eight, torch would run the network without compilation and say nothing.
"""

_CPU_VALUES = 1_500_000
"""Values of the widest activation (rows x tokens x MLP width) of a pass on a CPU: 6 MB in float32.
A larger activation leaves the cache, and the allocator returns its pages to the system.
"""

_CUDA_MEMORY_SHARE = 1 / 8
"""Share of a GPU's memory that the widest activation of a pass may take. Without a limit, a batch
of large images with many samples would not fit.
"""

_CPU_TOKENS = 1_200
"""Rows x tokens that a pass on a CPU may always have. With fewer, reading the weights of a large
network once per pass costs more than the cache saves.
"""

_ENTRY_POINTS = "eulerlora.runtimes"
"""The group of the runtimes of other libraries; an entry point has the name of its runtime."""


class Runtime(ABC):
    """Runs a network; callable like the network, with results that differ by rounding only.

    Attributes:
        name: In settings.
        max_rows_per_pass: More rows run in several passes.
    """

    name: ClassVar[RuntimeName]

    def __init__(
        self, network: AdaptedVisionTransformer, device: torch.device, settings: RuntimeSettings
    ) -> None:
        self.network = network.to(device)
        self.device = device
        self.max_rows_per_pass = max_rows_per_pass(network, device)

    @property
    def settings(self) -> AdapterSettings:
        return self.network.settings

    def draw_rows(self, draws: Sequence[Draw]) -> RowDraws:
        return self.network.draw_rows(draws)

    def __call__(self, images: Tensor, rows: Rows, draws: RowDraws) -> Tensor:
        return self.outputs(images, rows, draws).logits

    def outputs(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        """Arguments as in `AdaptedVisionTransformer.outputs`."""
        passes = math.ceil(len(rows) / self.max_rows_per_pass)
        if passes == 1:
            return self._pass(images, rows, draws)
        parts = [
            self._pass(images[part.images], part.renumbered, draws.rows(part.rows))
            for part in rows.split(math.ceil(len(rows) / passes))
        ]
        logits, features = zip(*parts, strict=True)
        return NetworkOutput(torch.cat(logits), torch.cat(features))

    def free_unread_weights(self) -> None:  # noqa: B027 - a runtime may read all of them
        """Frees the weights of the network that this runtime does not read; no other can run it."""

    @abstractmethod
    def _pass(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        """Runs all rows in one pass; arguments as in `outputs`."""


class TorchRuntime(Runtime):
    """Runs a network by torch.

    With `bfloat16`, the given network is changed (`round_products`): the weights of the blocks'
    matrix products become bfloat16, which halves their memory; patch embedding, norms, residuals,
    heads and logits stay float32.

    With a compiler, the first pass compiles the network for all row counts, and raises what torch
    raises if it fails. Without one, passes on a CUDA device become graphs (`RecordedPasses`).
    """

    name = "torch"

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        device: torch.device,
        settings: RuntimeSettings = DEFAULT_RUNTIME,
    ) -> None:
        super().__init__(network, device, settings)
        self._bfloat16 = settings.precision == "bfloat16"
        if self._bfloat16:
            round_products(self.network)
        self._forward: Forward = self.network.outputs
        counts = row_counts(self.max_rows_per_pass)
        if settings.compiler is not None:
            self.max_rows_per_pass = min(self.max_rows_per_pass, counts[-1])
            self._forward = self._compiled(settings.compiler, counts)
        elif settings.graphs or (settings.graphs is None and device.type == "cuda"):
            self._forward = RecordedPasses(self._forward, counts, recorder_of(device))

    def _pass(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        with self._autocast():
            return self._forward(images, rows, draws)

    def _autocast(self) -> AbstractContextManager[object]:
        if not self._bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _compiled(self, compiler: str, counts: Sequence[int]) -> Forward:
        graphs = compiler == "inductor" and self.device.type == "cuda"
        compiled: Forward = torch.compile(
            self.network.outputs,
            backend=compiler,
            mode="reduce-overhead" if graphs else None,
            dynamic=False,
            fullgraph=True,
        )
        groups = self.settings.adapters
        sizes = sorted({max(1, count // groups) for count in counts})  # of a group
        remaining: dict[Hashable, list[int]] = {}  # by the names of the draws

        def run(
            size: int, part: Tensor, images: Tensor, rows: Rows, draws: RowDraws
        ) -> NetworkOutput:
            """Runs the rows at the positions `part`, each with an image of its own."""
            taken = part.flatten()
            order = torch.arange(len(taken), device=part.device)
            own = Rows(order, rows.adapter[taken], (), order.view(part.shape))
            own, images = own.padded(groups, size), images[rows.image[taken]]
            limits = {"recompile_limit": _MAX_GRAPHS, "accumulated_recompile_limit": _MAX_GRAPHS}
            with torch._dynamo.config.patch(limits):
                output = compiled(padded(images, len(own)), own, draws.rows(taken).padded(len(own)))
            # The next pass overwrites a CUDA graph's output.
            return NetworkOutput(*(values[: len(taken)].clone() for values in output[:2]))

        def forward(images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
            left = remaining.setdefault(draws.names, list(sizes))
            while left:
                for _ in range(2 if graphs else 1):  # the second pass records the CUDA graph
                    run(left[-1], rows.positions[:1, :1], images, rows, draws)
                left.pop()
            parts = [  # one image may have more rows than a graph, and a batch more groups
                part
                for some in rows.positions.split(groups)
                for part in some.split(sizes[-1], dim=1)
            ]
            outputs = [
                run(sizes[bisect_left(sizes, part.shape[1])], part, images, rows, draws)
                for part in parts
            ]
            place = torch.cat([part.flatten() for part in parts]).argsort()
            logits, features = (torch.cat(values)[place] for values in zip(*outputs, strict=True))
            return NetworkOutput(logits, features)

        return forward


_MakeRuntime = Callable[[AdaptedVisionTransformer, torch.device, RuntimeSettings, str], Runtime]
"""(network, device, settings, digest) -> a runtime of another library.

digest: of the network's checkpoint, whose prepared graphs may be kept.
"""


def other_runtime(
    name: RuntimeName,
    network: AdaptedVisionTransformer,
    device: torch.device,
    settings: RuntimeSettings,
    digest: str,
) -> Runtime:
    """Makes the runtime of another library; arguments as in `_MakeRuntime`.

    Raises:
        SettingsError: In one line, for another device than a CPU, a compiler, a library that is not
            installed or cannot be imported, and a network that it cannot run.
    """
    for what, expected, got in (
        ("the device", "cpu", device.type),
        ("the compiler", None, settings.compiler),
    ):
        if got != expected:  # before the library is imported
            raise SettingsError(f"runtime {name}: expected {what} {expected}, got {got}")
    try:
        make: _MakeRuntime = entry_points(group=_ENTRY_POINTS)[name].load()
        return make(network, device, settings, digest)
    except SettingsError:
        raise
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"runtime {name}: expected the package {error.name}; pip install 'eulerlora[{name}]'"
        ) from error
    except Exception as error:  # whatever a library raises for a machine or a network
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise SettingsError(
            f"runtime {name}: expected to run the network, got {message}"
        ) from error


def max_rows_per_pass(network: AdaptedVisionTransformer, device: torch.device) -> int:
    """Rows per pass: on a CPU as many as are fast, on a GPU as many as fit."""
    shape = network.backbone.settings
    row_values = shape.tokens * shape.mlp_width  # of the widest activation
    if device.type == "cpu":
        return max(1, _CPU_TOKENS // shape.tokens, _CPU_VALUES // row_values)
    if device.type != "cuda":
        return sys.maxsize
    memory = torch.cuda.get_device_properties(device).total_memory  # bytes
    return max(1, int(memory * _CUDA_MEMORY_SHARE) // (4 * row_values))


def row_counts(max_rows: int) -> Sequence[int]:
    """Row counts to compile or record for passes of at most `max_rows` rows."""
    return _ROW_COUNTS[: bisect_left(_ROW_COUNTS, max_rows) + 1]


def predict_adaptively(
    network: RowNetwork,
    images: Tensor,
    draws: Sequence[Draw],
    rule: StoppingRule,
    temperatures: Temperatures = UNSCALED,
    distance: FeatureDistance | None = None,
) -> list[Trajectories]:
    """Runs the rounds of `samples="auto"` for every image.

    Each round runs the images that have not ended. Network, images and temperatures are as in
    `predict_images`; draws, rule and distance as in `AdaptiveSampling`.
    """
    samplings = [AdaptiveSampling(draw, rule, distance) for draw in draws]
    while pending := {
        index: sampling.next_draw
        for index, sampling in enumerate(samplings)
        if sampling.next_draw is not None
    }:
        outputs = predict_images(
            network, images[list(pending)], list(pending.values()), temperatures
        )
        for index, trajectories in zip(pending, outputs, strict=True):
            samplings[index].add(trajectories)
    return [sampling.trajectories for sampling in samplings]
