"""Diagonal SWAG (Maddox et al., NeurIPS 2019): moments of the weights along SGD.

SGD with a constant rate continues from finished adapters; every weight becomes normal with the mean
and the variance of its values at equally spaced steps.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eulerlora.methods.fitting import FitSettings, FitSource, FittedMethod
from eulerlora.methods.gaussian import GaussianWeightsMethod
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_client.settings import Positive, PositiveInt

MOMENTUM = 0.9


class SWAGSettings(MethodSettings):
    """Moments of the weights along SGD from finished adapters (diagonal SWAG)."""

    name: Literal["swag"] = "swag"
    learning_rate: Positive
    """Constant rate of SGD."""
    steps: Annotated[int, Field(ge=1)]
    """Number of steps of SGD."""
    snapshots: Annotated[int, Field(ge=2)]
    """Number of snapshots from which the moments were computed."""


class SWAGFit(FitSettings):
    """The moments of the weights along further steps of SGD (diagonal SWAG)."""

    name: Literal["swag"] = "swag"
    """The method."""
    steps: PositiveInt = 200
    """Number of steps of SGD."""
    snapshots: Annotated[int, Field(ge=2)] = 20
    """Number of snapshots of the weights, at equally spaced steps."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Constant rate of SGD."""


class Moments:
    """Running means of named tensors and of their squares, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.first: dict[str, Tensor] = {}
        self.second: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Adds a snapshot."""
        self.count += 1
        for name, tensor in tensors:
            exact = tensor.detach().double()
            for mean, value in ((self.first, exact), (self.second, exact.square())):
                previous = mean.setdefault(name, torch.zeros_like(exact))
                previous += (value - previous) / self.count

    @property
    def variances(self) -> Mapping[str, Tensor]:
        """The variance of every element over the snapshots (divided by their number)."""
        return {
            name: (self.second[name] - mean.square()).clamp_min(0)
            for name, mean in self.first.items()
        }


class SWAGMethod(GaussianWeightsMethod[SWAGSettings], FittedMethod[SWAGSettings]):
    """Noise on A, B and the heads."""

    settings_type = SWAGSettings
    fit_settings = SWAGFit

    @classmethod
    def fit(cls, settings: SWAGFit, source: FitSource) -> AdaptedVisionTransformer:
        """Returns the network with the moments of `settings.steps` steps of SGD."""
        trained = source.network
        parameters = [parameter for _, parameter in trained.adapter_parameters()]
        optimiser = torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=MOMENTUM)
        moments = Moments()
        trained.train()
        for step, loss in enumerate(source.losses(settings.steps)):
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, source.clip_norm)
            optimiser.step()
            if (step + 1) * settings.snapshots // settings.steps > moments.count:
                moments.add(trained.adapter_parameters())
        network = cls.network_of(SWAGSettings(**settings.model_dump()), trained.eval())
        with torch.no_grad():
            for name, variance in moments.variances.items():
                network.get_parameter(name).copy_(moments.first[name])
                network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())
        return network
