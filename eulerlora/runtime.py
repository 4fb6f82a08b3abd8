"""Execution of a network: device, precision, compilation and rows per pass."""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.backbone_network import LayerScale
from eulerlora.rows import Rows
from eulerlora.settings import DEFAULT_RUNTIME, AdapterSettings, RuntimeSettings
from eulerlora.vision_transformer import AdaptedVisionTransformer, NetworkOutput

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
"""Row counts for which a network is compiled; a pass is padded to the next of them."""

CUDA_ROW_COUNTS = (*ROW_COUNTS, 192, 256, 384, 512)
"""The same on a CUDA device."""

MAX_GRAPHS = 1_000
"""Number of graphs that a process may compile, of all networks together; one more is an error.
Beyond its own limit of eight, torch would run the network without compilation and say nothing.
"""

CPU_VALUES = 1_500_000
"""Values of the widest activation (rows x tokens x MLP width) of a pass on a CPU: 6 MB in float32.
A larger activation leaves the cache, and the allocator returns its pages to the system.
"""

CPU_TOKENS = 1_200
"""Rows x tokens that a pass on a CPU may always have. With fewer, reading the weights of a large
network once per pass costs more than the cache saves.
"""

Forward = Callable[[Tensor, Rows, Tensor], NetworkOutput]


class Runtime:
    """Runs a network; callable like the network, with results that differ by rounding only.

    With `bfloat16`, the given network is changed: the weights of all matrix products but the heads'
    become bfloat16, which halves their memory; norms, residuals, heads and logits stay float32.
    max_rows_per_pass: more rows run in several passes. compiled: True if the network is compiled;
    the first pass then compiles it for all row counts, and raises what torch raises if it fails.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        device: torch.device,
        settings: RuntimeSettings = DEFAULT_RUNTIME,
    ) -> None:
        self.network = network.to(device)
        self.device = device
        self._bfloat16 = settings.precision == "bfloat16"
        if self._bfloat16:
            round_products(self.network)
        self.max_rows_per_pass = max_rows_per_pass(network, device)
        self.compiled = settings.compiler is not None
        self._forward: Forward = self.network.outputs
        if settings.compiler is not None:
            counts = row_counts(self.max_rows_per_pass, device)
            self.max_rows_per_pass = min(self.max_rows_per_pass, counts[-1])
            self._forward = self._compiled(settings.compiler, counts)

    @property
    def settings(self) -> AdapterSettings:
        """The settings of the network's adapters."""
        return self.network.settings

    @property
    def depth(self) -> int:
        """The number of blocks of the network."""
        return self.network.depth

    def __call__(self, images: Tensor, rows: Rows, coefficients: Tensor) -> Tensor:
        """Returns the logits of every row; arguments as in `outputs`."""
        return self.outputs(images, rows, coefficients).logits

    def outputs(self, images: Tensor, rows: Rows, coefficients: Tensor) -> NetworkOutput:
        """Returns logits and features; arguments as in `AdaptedVisionTransformer.outputs`."""
        with self._autocast():
            passes = math.ceil(len(rows) / self.max_rows_per_pass)
            if passes == 1:
                return self._forward(images, rows, coefficients)
            parts = [
                self._forward(images[part.images], part.renumbered, coefficients[part.rows])
                for part in rows.split(math.ceil(len(rows) / passes))
            ]
        return NetworkOutput(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _autocast(self) -> AbstractContextManager[object]:
        if not self._bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _compiled(self, compiler: str, counts: Sequence[int]) -> Forward:
        """Compiles the network for each row count, on a CUDA device with CUDA graphs."""
        graphs = compiler == "inductor" and self.device.type == "cuda"
        compiled: Forward = torch.compile(
            self.network.outputs,
            backend=compiler,
            mode="reduce-overhead" if graphs else None,
            dynamic=False,
            fullgraph=True,
        )
        remaining = list(counts)

        def padded(count: int, images: Tensor, rows: Rows, coefficients: Tensor) -> NetworkOutput:
            rows = Rows(_padded(rows.image, count), _padded(rows.adapter, count), ())
            limits = {"recompile_limit": MAX_GRAPHS, "accumulated_recompile_limit": MAX_GRAPHS}
            with torch._dynamo.config.patch(limits):
                return compiled(_padded(images, count), rows, _padded(coefficients, count))

        def forward(images: Tensor, rows: Rows, coefficients: Tensor) -> NetworkOutput:
            while remaining:
                first = Rows(rows.image[:1], rows.adapter[:1], ())
                for _ in range(2 if graphs else 1):  # the second pass records the CUDA graph
                    padded(remaining[-1], images[:1], first, coefficients[:1])
                remaining.pop()
            count = padded_count(len(rows), counts)
            output = padded(count, images, rows, coefficients)
            # The next pass overwrites a CUDA graph's output.
            return NetworkOutput(*(values[: len(rows)].clone() for values in output))

        return forward


def max_rows_per_pass(network: AdaptedVisionTransformer, device: torch.device) -> int:
    """Returns the number of rows per pass: unlimited, except on a CPU, where fewer are faster."""
    if device.type != "cpu":
        return sys.maxsize
    shape = network.backbone.settings
    return max(1, CPU_TOKENS // shape.tokens, CPU_VALUES // (shape.tokens * shape.mlp_width))


def row_counts(max_rows: int, device: torch.device) -> Sequence[int]:
    """Returns the row counts to compile for passes of at most `max_rows` rows."""
    counts = CUDA_ROW_COUNTS if device.type == "cuda" else ROW_COUNTS
    return counts[: bisect_left(counts, max_rows) + 1]


def padded_count(rows: int, counts: Sequence[int]) -> int:
    """Returns the row count to which a pass of at most `counts[-1]` rows is padded."""
    return counts[bisect_left(counts, rows)]


def _padded(values: Tensor, count: int) -> Tensor:
    """Returns (count, ...): values (n, ...) followed by zeros."""
    return F.pad(values, [0, 0] * (values.ndim - 1) + [0, count - len(values)])


def round_products(network: AdaptedVisionTransformer) -> None:
    """Converts the weights of all matrix products but the heads' to bfloat16, in place."""
    for module in (*network.backbone.modules(), *network.blocks):
        if not isinstance(module, nn.LayerNorm | LayerScale):
            for name, parameter in module.named_parameters(recurse=False):
                if name not in ("class_token", "register_tokens", "pos_embedding"):
                    parameter.data = parameter.data.bfloat16()
