"""Distributions around finished adapters: what a fit gets, TFB and SWAG.

Training-free Bayesianization of adapters (Shi et al., NeurIPS 2025).

With B = U D V', the adapter B A is also (U D) (V' A). Normal noise of standard deviation s / D_k on
row k of V' A adds U E to the weights, where all elements of E have the standard deviation s. The
search finds the largest s that changes the labels of few anchors.

Diagonal SWAG (Maddox et al., NeurIPS 2019): moments of the weights along SGD.

SGD with a constant rate continues from finished adapters; every weight becomes normal with the mean
and the variance of its values at equally spaced steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.methods.gaussian import GaussianAdapters, GaussianWeightsMethod, Weight
from eulerlora.nn.method import AnyMethod, FitSettings, MethodSettings, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.settings import Draw
from eulerlora_client.settings import NotNegative, Positive, PositiveInt


@dataclass(frozen=True)
class FitImages:
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

    def inputs(self, part: Literal["train", "held-out"], count: int) -> FitImages:
        """Returns at most `count` evenly spaced images of a part, as in a prediction."""

    def losses(self, steps: int) -> Iterator[Tensor]:
        """Yields the mean loss of further steps of the network's training.

        Each is that of the current weights, with a graph for `backward`.
        """


FIT_BATCH = 32
FIT_SAMPLES = 4
"""Samples per adapter when a fit compares predictions."""


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


@torch.no_grad()
def network_of(
    method: type[AnyMethod], settings: MethodSettings, source: AdaptedVisionTransformer
) -> AdaptedVisionTransformer:
    """Returns a network of a method with the backbone, adapters and heads of another network.

    Tensors that only this method has are zero. The adapters draw no masks.
    """
    adapters = source.settings.model_copy(update={"min_rank": source.settings.rank})
    shape = NetworkShape(adapters, source.backbone.settings, source.heads.bias.shape[1])
    network = AdaptedVisionTransformer(
        source.backbone, method(settings, shape), source.preprocessing
    ).to(source.heads.bias.device)
    for name, parameter in source.adapter_parameters():
        network.get_parameter(name).copy_(parameter)
    return network.eval()


START = 2.0**-10
"""Where the search for the largest deviation begins."""
RANGE = 2.0**-30, 2.0**10
BISECTIONS = 6
SMALLEST_VALUE = 1e-6
"""Singular values below this share of the largest one get no noise, which would have no effect."""


class TFBSettings(MethodSettings):
    """Training-free Bayesianization of finished adapters: noise on A, equal in weight space."""

    name: Literal["tfb"] = "tfb"
    deviation: NotNegative
    """Standard deviation of each element of the noise that U adds to the weights."""
    tolerance: Annotated[float, Field(ge=0, lt=1)]
    """Accepted share of anchors with another label."""
    anchors: Annotated[int, Field(ge=1)]
    """Number of anchors."""


class TFBFit(FitSettings):
    """Noise on A of the greatest size that hardly changes labels (TFB)."""

    name: Literal["tfb"] = "tfb"
    """The method."""
    images: PositiveInt = 256
    """Number of training images, evenly spaced, that the fit uses."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Accepted share of these images whose label the noise changes."""


class TFBMethod(GaussianWeightsMethod[TFBSettings]):
    """Noise on A."""

    settings_type = TFBSettings
    fit_settings = TFBFit
    sampled_weights: tuple[Weight, ...] = ("down",)

    @classmethod
    def fit(cls, settings: TFBFit, source: FitSource) -> AdaptedVisionTransformer:
        """Returns the network with the largest noise that changes few labels."""
        anchors = source.inputs("train", settings.images).pixels
        return cls.with_largest_noise(source.network, anchors, settings.tolerance)

    @classmethod
    def with_largest_noise(
        cls, source: AdaptedVisionTransformer, anchors: Tensor, tolerance: float
    ) -> AdaptedVisionTransformer:
        """Returns the network with the largest accepted noise.

        anchors: (n, 3, size, size). tolerance: accepted share of anchors with another label.
        """
        stated = TFBSettings(deviation=0.0, tolerance=tolerance, anchors=len(anchors))
        network = network_of(cls, stated, source)
        values = rotate(network)
        labels = predicted_probabilities(network, anchors, samples=None).argmax(dim=-1)

        def changed(deviation: float) -> float:
            set_deviation(network, values, deviation)
            sampled = predicted_probabilities(network, anchors).argmax(dim=-1)
            return (sampled != labels).double().mean().item()

        deviation = largest_accepted(lambda value: changed(value) <= tolerance)
        set_deviation(network, values, deviation)
        network.method.settings = stated.model_copy(update={"deviation": deviation})
        return network


@torch.no_grad()
def rotate(network: AdaptedVisionTransformer) -> list[Tensor]:
    """Replaces B by U D and A by V' A in all adapters, in place: B A does not change.

    Returns the singular values D of each block, (4, adapters, rank).
    """
    values = []
    for block in _adapters(network):
        left, singular, right = torch.linalg.svd(block.up, full_matrices=False)  # up is B'
        block.down.copy_(_padded(left.mT @ block.down, block.down))
        block.up.copy_(_padded(singular.unsqueeze(-1) * right, block.up))
        missing = block.up.shape[-2] - singular.shape[-1]  # of a rank above the width
        values.append(F.pad(singular, (0, missing)))
    return values


def _adapters(network: AdaptedVisionTransformer) -> Iterator[GaussianAdapters]:
    """Yields the adapters of each block."""
    for block in network.blocks:
        assert isinstance(block, GaussianAdapters)
        yield block


def _padded(rows: Tensor, like: Tensor) -> Tensor:
    return F.pad(rows, (0, 0, 0, like.shape[-2] - rows.shape[-2]))


@torch.no_grad()
def set_deviation(
    network: AdaptedVisionTransformer, values: list[Tensor], deviation: float
) -> None:
    """Sets the scales of rotated adapters so that weights get noise U E of this deviation.

    values: of `rotate`.
    """
    for block, singular in zip(_adapters(network), values, strict=True):
        effective = singular > SMALLEST_VALUE * singular.amax(dim=-1, keepdim=True)
        scale = torch.where(effective, deviation / singular, 0.0)
        block.get_parameter("down_root").copy_(scale.sqrt().unsqueeze(-1).expand_as(block.down))


def largest_accepted(is_accepted: Callable[[float], bool]) -> float:
    """Returns the largest accepted number, to 2%, for a property that only small ones have.

    0 if even the smallest of `RANGE` is not accepted.
    """
    accepted = START
    while accepted >= RANGE[0] and not is_accepted(accepted):
        accepted /= 2
    if accepted < RANGE[0]:
        return 0.0
    rejected = 2 * accepted
    while rejected <= RANGE[1] and is_accepted(rejected):
        accepted, rejected = rejected, 2 * rejected
    for _ in range(BISECTIONS):
        middle = (accepted * rejected) ** 0.5
        if is_accepted(middle):
            accepted = middle
        else:
            rejected = middle
    return accepted


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


class SWAGMethod(GaussianWeightsMethod[SWAGSettings]):
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
        network = network_of(cls, SWAGSettings(**settings.model_dump()), trained.eval())
        with torch.no_grad():
            for name, variance in moments.variances.items():
                network.get_parameter(name).copy_(moments.first[name])
                network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())
        return network
