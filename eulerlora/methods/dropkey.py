"""MC dropout of keys (DropKey, Li et al., CVPR 2023): masks on the attention logits of a row.

    softmax(q k' / sqrt(d) + M),   M = -1e12 with probability `rate` for every query and key, or 0

The softmax renormalises over the kept keys. Masks are independent over rows, blocks, heads, queries
and keys.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from eulerlora.methods.gaussian import NoiseMethod
from eulerlora.nn.attention import AttentionAdapters, BlockAdapters, adapted_attention
from eulerlora.nn.method import MethodSettings, NetworkShape
from eulerlora.nn.rows import COEFFICIENTS, BlockRows, RowDraws

DROPPED = "dropped_keys"
"""Name of the masks, (rows, blocks, heads, tokens, tokens): 1 where a key is dropped for a query.
They have 0.5 MB for a row of 8 blocks with 4 heads and 65 tokens."""
DROPPED_LOGIT = -1e12
"""Finite: a query without any key attends to all equally."""


class DropKeySettings(MethodSettings):
    """MC dropout of keys: random attention logits are masked, in training and in mode stoch."""

    name: Literal["dropkey"] = "dropkey"
    """The method."""
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability that a key is masked for a query of a head."""


class DropKeyAdapters(AttentionAdapters):
    """The directions of one block; a row's masks are added to its attention logits."""

    def attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        rows: BlockRows,
        queries: int | None = None,
    ) -> Tensor:
        coefficients, dropped = self.coefficients(rows), rows.draws.get(DROPPED)
        added = None if dropped is None else DROPPED_LOGIT * dropped[:, :, :queries]
        return adapted_attention(inputs, frozen, self, coefficients, rows.image, queries, added)


class DropKeyMethod(NoiseMethod[DropKeySettings]):
    """A key is dropped where standard normal noise is below a quantile; in training too, every row
    of every image has its own masks.
    """

    settings_type = DropKeySettings
    takes_dropout = False
    noise_per_image = True

    def __init__(self, settings: DropKeySettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        backbone = shape.backbone
        self.quantile = NormalDist().inv_cdf(settings.rate)
        self.noise = {DROPPED: (self.depth, backbone.heads, backbone.tokens, backbone.tokens)}

    def block(self) -> BlockAdapters:
        return DropKeyAdapters(self.shape.backbone.width, self.adapters)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws(
            {COEFFICIENTS: coefficients, DROPPED: (noise[DROPPED] < self.quantile).float()}
        )
