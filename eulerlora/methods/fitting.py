"""Methods that are fitted to the adapters of a finished network, and what a fit may use."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from eulerlora.nn.method import Method, NetworkShape, SettingsType_co
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.settings import Draw
from eulerlora_client.settings import Settings

FIT_BATCH = 32
FIT_SAMPLES = 4
"""Samples per adapter when a fit compares predictions."""


class FitSettings(Settings):
    """Base of the settings of a fit: the table `posterior` of a recipe."""

    name: str
    """The method; a subclass has one name, `Literal["..."] = "..."`."""


@dataclass(frozen=True)
class Inputs:
    """Prepared images: pixels (n, 3, size, size) on the device, labels (n,) on the CPU."""

    pixels: Tensor
    labels: Tensor


class FitSource(Protocol):
    """A finished network with plain adapters, on its device, and the images of its data set.

    training_images: their number. clip_norm: of the gradient, as in the network's training.
    """

    @property
    def network(self) -> AdaptedVisionTransformer: ...
    @property
    def training_images(self) -> int: ...
    @property
    def clip_norm(self) -> float: ...

    def inputs(self, part: Literal["train", "held-out"], count: int) -> Inputs:
        """Returns at most `count` evenly spaced images of a part, as in a prediction."""

    def losses(self, steps: int) -> Iterator[Tensor]:
        """Yields the mean loss of further steps of the network's training.

        Each is that of the current weights, with a graph for `backward`.
        """


class FittedMethod(Method[SettingsType_co]):
    """A method of which no recipe trains the tensors.

    fit_settings: the class of the settings of the fit; it has the name of the method.
    """

    fit_settings: ClassVar[type[FitSettings]]

    @classmethod
    def fits_to_held_out(cls, settings: Any) -> bool:
        """Returns True if `fit` needs images that the network was not trained on."""
        return False

    @classmethod
    @abstractmethod
    def fit(cls, settings: Any, source: FitSource) -> AdaptedVisionTransformer:
        """Returns a network of this method. settings: of the class `fit_settings`.

        The source's network is not usable afterwards.
        """

    @classmethod
    @torch.no_grad()
    def network_of(
        cls, settings: Any, source: AdaptedVisionTransformer
    ) -> AdaptedVisionTransformer:
        """Returns a network of this method with the backbone, adapters and heads of another one.

        Tensors that only this method has are zero. The adapters draw no masks. settings: of the
        class `settings_type`.
        """
        adapters = source.settings.model_copy(update={"min_rank": source.settings.rank})
        shape = NetworkShape(adapters, source.backbone.settings, source.heads.bias.shape[1])
        network = AdaptedVisionTransformer(
            source.backbone, cls(settings, shape), source.preprocessing
        ).to(source.heads.bias.device)
        for name, parameter in source.adapter_parameters():
            network.get_parameter(name).copy_(parameter)
        return network.eval()


def predicted_probabilities(
    network: AdaptedVisionTransformer, pixels: Tensor, samples: int | None = FIT_SAMPLES
) -> Tensor:
    """Returns the mean probabilities (n, classes), float64 on the CPU.

    samples: per adapter; None for mode det. Image i has the seed i, so that two calls differ in the
    network only.
    """
    draws = [
        Draw() if samples is None else Draw(mode="stoch", samples=samples, seed=seed)
        for seed in range(len(pixels))
    ]
    outputs = [
        output.log_probabilities.exp().mean(dim=0)
        for start in range(0, len(pixels), FIT_BATCH)
        for output in predict_images(
            network, pixels[start : start + FIT_BATCH], draws[start : start + FIT_BATCH]
        )
    ]
    return torch.stack(outputs)
