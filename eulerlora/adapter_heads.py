"""The classification heads of the adapters."""

from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn


class AdapterHeads(nn.Module):
    """One linear classification head for each adapter.

    weight: (adapters, classes, width). bias: (adapters, classes).
    """

    def __init__(self, width: int, classes: int, adapters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(adapters, classes, width))
        self.bias = nn.Parameter(torch.zeros(adapters, classes))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws every head like `nn.Linear`: uniform in [-1/sqrt(width), 1/sqrt(width)]."""
        bound = self.weight.shape[-1] ** -0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)

    def forward(
        self, features: Tensor, adapter: Tensor, draws: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Returns logits (rows, classes), in float32 under autocast too.

        features: (rows, width). adapter: (rows,), index of the head of each row. draws: of the
        rows, by name; these heads use none.
        """
        with torch.autocast(features.device.type, enabled=False):
            logits = torch.einsum("nd,acd->nac", features.float(), self.weight) + self.bias
        return logits[torch.arange(len(features), device=logits.device), adapter]
