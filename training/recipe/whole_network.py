"""The part `whole_network` of a recipe: networks whose weights are all trained."""

from typing import Literal, Self

from pydantic import model_validator

from eulerlora.settings import AdapterSettings, PositiveInt
from eulerlora.validation import Settings

NO_ADAPTERS = AdapterSettings(adapters=1, rank=1, min_rank=1)
"""Adapters of a whole network: they keep the value 0, so that its checkpoint is one of adapters."""


class WholeNetworkSettings(Settings):
    """Training of all weights of the backbone instead of adapters.

    members: trained networks; each is one answer to an image.
    ensemble: of several members, `explicit` trains each from the pretrained weights with its own
    order, views and random head (Lakshminarayanan et al., NeurIPS 2017); `snapshot` divides the
    epochs of one run into as many cycles of the learning rate and keeps the weights at the end of
    each (Huang et al., ICLR 2017).
    attention: `l2` replaces the dot product of all blocks by a distance, and the weights of the
    keys by those of the queries, which stay equal (Kim et al., ICML 2021).
    """

    members: PositiveInt = 1
    ensemble: Literal["explicit", "snapshot"] = "explicit"
    attention: Literal["dot", "l2"] = "dot"

    @model_validator(mode="after")
    def _several_snapshots(self) -> Self:
        if self.ensemble == "snapshot" and self.members == 1:
            raise ValueError("expected members of at least 2 with ensemble=snapshot, got 1")
        return self
