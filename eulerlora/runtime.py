"""A network as it is run: on a device, in a precision, compiled or not."""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.backbone import settings_of
from eulerlora.rows import Rows
from eulerlora.settings import DEFAULT_RUNTIME, AdapterSettings, RuntimeSettings
from eulerlora.vision_transformer import AdaptedVisionTransformer

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Row counts that a compiled network exists for; a batch is padded to the next of them, or to a
multiple of the last.
"""

CPU_VALUES = 1_500_000
"""Values of the widest activation (rows x tokens x MLP width) of a pass on a CPU: 6 MB in float32.
Larger ones leave the cache, and the allocator gives their pages back to be zeroed anew.
"""

CPU_TOKENS = 1_200
"""Rows x tokens that a pass on a CPU may always have, however wide: with fewer, reading a large
network's weights once a pass costs more than the cache saves.
"""

Forward = Callable[[Tensor, Rows, Tensor], Tensor]


class Runtime:
    """Runs a network; called as the network is, with equal results but for rounding.

    In `bfloat16` the weights of all products are stored in bfloat16, so that they are rounded
    once and take half the memory; norms, residuals, heads and logits stay float32. The network
    given is changed to that. max_rows_per_pass: rows of one pass; more are passed in parts. compiled:
    whether the network is.
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
        self._forward: Forward = self.network
        if settings.compiler is not None:
            self._forward = self._compiled(settings.compiler)

    @property
    def settings(self) -> AdapterSettings:
        """The network's adapters."""
        return self.network.settings

    @property
    def depth(self) -> int:
        """The network's number of blocks."""
        return self.network.depth

    def __call__(self, images: Tensor, rows: Rows, coefficients: Tensor) -> Tensor:
        """Logits of every row, as `AdaptedVisionTransformer.forward`; many rows in parts."""
        with self._precision():
            passes = math.ceil(len(rows) / self.max_rows_per_pass)
            if passes == 1:
                return self._forward(images, rows, coefficients)
            return torch.cat(
                [
                    self._forward(images[part.images], part.own, coefficients[part.rows])
                    for part in rows.parts(math.ceil(len(rows) / passes))
                ]
            )

    def _precision(self) -> AbstractContextManager[object]:
        if not self._bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _compiled(self, compiler: str) -> Forward:
        """The compiled network, with CUDA graphs on a CUDA device; one graph for each row count."""
        graphs = compiler == "inductor" and self.device.type == "cuda"
        compiled: Forward = torch.compile(
            self.network,
            backend=compiler,
            mode="reduce-overhead" if graphs else None,
            dynamic=False,
        )

        def forward(images: Tensor, rows: Rows, coefficients: Tensor) -> Tensor:
            padded = padded_count(len(rows))
            filled = Rows(_padded(rows.image, padded), _padded(rows.adapter, padded), ())
            logits = compiled(_padded(images, padded), filled, _padded(coefficients, padded))
            return logits[: len(rows)].clone()  # a CUDA graph's output is overwritten by the next

        return forward


def max_rows_per_pass(network: AdaptedVisionTransformer, device: torch.device) -> int:
    """Rows of one pass: all of them, but for a CPU, where fewer at a time are faster."""
    if device.type != "cpu":
        return sys.maxsize
    shape = settings_of(network.backbone)
    return max(1, CPU_TOKENS // shape.tokens, CPU_VALUES // (shape.tokens * shape.mlp_width))


def padded_count(rows: int) -> int:
    """The row count that a batch is padded to."""
    largest = ROW_COUNTS[-1]
    return next((count for count in ROW_COUNTS if rows <= count), -(-rows // largest) * largest)


def _padded(values: Tensor, count: int) -> Tensor:
    """values: (n, ...), with zeros behind up to `count`."""
    return F.pad(values, [0, 0] * (values.ndim - 1) + [0, count - len(values)])


def round_products(network: AdaptedVisionTransformer) -> None:
    """Stores the weights of all matrix products but the heads' in bfloat16, in place."""
    for module in (*network.backbone.modules(), *network.blocks):
        if not isinstance(module, nn.LayerNorm):
            for name, parameter in module.named_parameters(recurse=False):
                if name not in ("class_token", "pos_embedding"):
                    parameter.data = parameter.data.bfloat16()
