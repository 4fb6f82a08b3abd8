"""The parts `whole_network` and `posterior` of a recipe."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

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


class TFBFit(Settings):
    """Noise on A of the greatest size that hardly changes labels (TFB).

    name: the method.
    images: number of training images, evenly spaced, that the fit uses.
    tolerance: accepted share of these images whose label the noise changes.
    """

    name: Literal["tfb"] = "tfb"
    images: PositiveInt = 256
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01


class LaplaceFit(Settings):
    """A normal distribution from the curvature of the loss (Laplace).

    name: the method.
    images: number of training images, evenly spaced, that the fit uses.
    layers: `last` samples the heads, `adapters` samples A and B, `all` samples both.
    structure: of the curvature: its diagonal, or Kronecker factors of every matrix.
    prior_precision: of every element; None uses the best of 1, 10, ..., 1e8 on held-out images.
    """

    name: Literal["laplace"] = "laplace"
    images: PositiveInt = 256
    layers: Literal["last", "adapters", "all"] = "all"
    structure: Literal["diagonal", "kron"] = "diagonal"
    prior_precision: Annotated[float, Field(gt=0)] | None = None


class SWAGFit(Settings):
    """The moments of the weights along further steps of SGD (diagonal SWAG).

    name: the method.
    steps: number of steps of SGD.
    snapshots: number of snapshots of the weights, at equally spaced steps.
    learning_rate: constant rate of SGD.
    """

    name: Literal["swag"] = "swag"
    steps: PositiveInt = 200
    snapshots: Annotated[int, Field(ge=2)] = 20
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3


PosteriorFit = TFBFit | LaplaceFit | SWAGFit
"""A distribution that is fitted to finished adapters."""
