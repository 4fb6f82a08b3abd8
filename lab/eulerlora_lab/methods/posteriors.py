"""Distributions that are fitted to the adapters of a finished training: TFB, SWAG and Laplace.

**TFB**: Training-Free Bayesianization (Shi et al., NeurIPS 2025). With B = U D V', the adapter B A
is also (U D) (V' A). Normal noise of standard deviation s / D_k on row k of V' A adds U E to the
weights, where all elements of E have the standard deviation s. The search finds the largest s that
changes the labels of few anchors.

**SWAG**: moments of the weights along SGD (diagonal SWAG; Maddox et al., NeurIPS 2019). SGD with a
constant rate continues from finished adapters; every weight becomes normal with the mean and the
variance of its values at equally spaced steps.

**Laplace**: Daxberger et al., "Laplace Redux", NeurIPS 2021; for adapters Yang et al., "Bayesian
Low-rank Adaptation for Large Language Models", ICLR 2024. The posterior of each element is normal
with variance 1 / (n h + prior precision), where n h is the diagonal of the generalised Gauss-Newton
matrix of the cross-entropy over the training images. With Kronecker factors, the same holds for the
elements of each matrix in the bases of its factors. Each adapter has its own posterior, from its
own answers. The factors are those of KFAC-expand: Martens and Grosse, ICML 2015; for transformers
Eschenhagen et al., "Kronecker-Factored Approximate Curvature for Modern Neural Network
Architectures", NeurIPS 2023. For a matrix W with y = W x, the generalised Gauss-Newton matrix over
images and tokens is

    (sum of g g') kron (mean of x x')

where g is the gradient of log p(class) by y, and classes are weighted with their probability.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import grouped_linear
from eulerlora.nn.method import (
    AdapterHeads,
    BlockAdapters,
    FinishedRun,
    MethodSettings,
    NetworkShape,
    RowDraws,
    SettingsType_co,
)
from eulerlora.nn.network import AdaptedVisionTransformer, ProjectedBlock, predict_images
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import PROJECTIONS
from eulerlora.settings import Draw
from eulerlora_contract.settings import NotNegative, Positive, PositiveInt, optional
from eulerlora_lab.methods.gaussian import GaussianAdapters, GaussianWeightsMethod, Weight

Module = TypeVar("Module", bound=nn.Module)

_FIT_BATCH = 32
_FIT_SAMPLES = 4
"""Samples per adapter when a fit compares predictions."""


def _predicted_probabilities(
    network: AdaptedVisionTransformer, pixels: Tensor, samples: int | None = _FIT_SAMPLES
) -> Tensor:
    """The mean probabilities (n, classes), float64 on the CPU.

    `pixels` are (n, 3, size, size) on the network's device. `samples` is per adapter, None for mode
    det. Image i has the seed i, so that two calls differ in the network only.
    """
    draws = [
        Draw() if samples is None else Draw(mode="stoch", samples=samples, seed=seed)
        for seed in range(len(pixels))
    ]
    outputs = [
        trajectories.flat_log_probabilities.exp().mean(dim=1)
        for start in range(0, len(pixels), _FIT_BATCH)
        for trajectories in predict_images(
            network, pixels[start : start + _FIT_BATCH], draws[start : start + _FIT_BATCH]
        )
    ]
    return torch.cat(outputs)


class _FittedMethod(GaussianWeightsMethod[SettingsType_co]):
    """Training changes the means alone, in mode det; the scales are fitted after it."""

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return {"training.sampling": (False,)}

    def block(self, index: int) -> BlockAdapters:
        return _fitted(super().block(index))

    def heads(self) -> AdapterHeads:
        return _fitted(super().heads())

    def after_training(self, network: nn.Module, run: FinishedRun) -> None:
        assert isinstance(network, AdaptedVisionTransformer)
        self.settings = self.fit(network.eval(), run)

    @abstractmethod
    def fit(self, network: AdaptedVisionTransformer, run: FinishedRun) -> SettingsType_co:
        """Fits the scales of a trained network; returns the settings with what was fitted."""


def _fitted(module: Module) -> Module:
    """Excludes scales and bases from training."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.endswith(("_root", "_left", "_right")))
    return module


_START = 2.0**-10
"""Where the search for the largest deviation begins."""
_RANGE = 2.0**-30, 2.0**10
_SMALLEST_VALUE = 1e-6
"""Singular values below this share of the largest one get no noise, which would have no effect."""


class TFBSettings(MethodSettings):
    """Noise on A of the greatest size that hardly changes labels, equal in weight space (TFB)."""

    name: Literal["tfb"] = "tfb"
    """The method."""
    deviation: NotNegative | None = optional(None)
    """Standard deviation of each element of the noise that U adds to the weights; set by the fit.
    """
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Accepted share of the anchors whose label the noise changes."""
    anchors: PositiveInt = 256
    """Number of training images, evenly spaced, that the fit uses."""


class TFBMethod(_FittedMethod[TFBSettings]):
    """Noise on A."""

    settings_type = TFBSettings
    sampled_weights: tuple[Weight, ...] = ("down",)

    def fit(self, network: AdaptedVisionTransformer, run: FinishedRun) -> TFBSettings:
        """Rotates the adapters and sets the largest noise that changes few labels."""
        settings = self.settings
        anchors, _ = run.inputs("train", settings.anchors)
        values = _rotate(network)
        labels = _predicted_probabilities(network, anchors, samples=None).argmax(dim=-1)

        def is_accepted(deviation: float) -> bool:
            _set_deviation(network, values, deviation)
            sampled = _predicted_probabilities(network, anchors).argmax(dim=-1)
            return (sampled != labels).double().mean().item() <= settings.tolerance

        deviation = _largest_accepted(is_accepted)
        _set_deviation(network, values, deviation)
        return settings.model_copy(update={"deviation": deviation, "anchors": len(anchors)})


@torch.no_grad()
def _rotate(network: AdaptedVisionTransformer) -> list[Tensor]:
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
    for block in network.blocks:
        assert isinstance(block, GaussianAdapters)
        yield block


def _padded(rows: Tensor, like: Tensor) -> Tensor:
    return F.pad(rows, (0, 0, 0, like.shape[-2] - rows.shape[-2]))


@torch.no_grad()
def _set_deviation(
    network: AdaptedVisionTransformer, values: list[Tensor], deviation: float
) -> None:
    """Sets the scales of adapters after `_rotate`: noise U E of this deviation on the weights."""
    for block, singular in zip(_adapters(network), values, strict=True):
        effective = singular > _SMALLEST_VALUE * singular.amax(dim=-1, keepdim=True)
        scale = torch.where(effective, deviation / singular, 0.0)
        block.get_parameter("down_root").copy_(scale.sqrt().unsqueeze(-1).expand_as(block.down))


def _largest_accepted(is_accepted: Callable[[float], bool]) -> float:
    """The largest accepted number, to 2%, for a property that only small ones have.

    0 if even the smallest of `_RANGE` is not accepted.
    """
    accepted = _START
    while accepted >= _RANGE[0] and not is_accepted(accepted):
        accepted /= 2
    if accepted < _RANGE[0]:
        return 0.0
    rejected = 2 * accepted
    while rejected <= _RANGE[1] and is_accepted(rejected):
        accepted, rejected = rejected, 2 * rejected
    for _ in range(6):
        middle = (accepted * rejected) ** 0.5
        if is_accepted(middle):
            accepted = middle
        else:
            rejected = middle
    return accepted


_MOMENTUM = 0.9


class SWAGSettings(MethodSettings):
    """The moments of the weights along further steps of SGD (diagonal SWAG)."""

    name: Literal["swag"] = "swag"
    """The method."""
    learning_rate: Positive = 1e-3
    """Constant rate of SGD."""
    steps: PositiveInt = 200
    """Number of steps of SGD."""
    snapshots: Annotated[int, Field(ge=2)] = 20
    """Number of snapshots of the weights, at equally spaced steps."""


class _Moments:
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


class SWAGMethod(_FittedMethod[SWAGSettings]):
    """Noise on A, B and the heads."""

    settings_type = SWAGSettings

    def fit(self, network: AdaptedVisionTransformer, run: FinishedRun) -> SWAGSettings:
        """Fits the moments of `settings.steps` steps of SGD."""
        settings, moments = self.settings, _Moments()
        means = {n: p for n, p in network.adapter_parameters() if p.requires_grad}
        optimiser = torch.optim.SGD(means.values(), lr=settings.learning_rate, momentum=_MOMENTUM)
        for step, loss in enumerate(run.losses(settings.steps)):
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(means.values(), run.clip_norm)
            optimiser.step()
            if (step + 1) * settings.snapshots // settings.steps > moments.count:
                moments.add(means.items())
        with torch.no_grad():
            for name, variance in moments.variances.items():
                network.get_parameter(name).copy_(moments.first[name])
                network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())
        return settings


_CURVATURE_BATCH = 8
_PRIOR_PRECISIONS = tuple(10.0**exponent for exponent in range(9))
"""Prior precisions that a search compares."""
_LAYERS: Mapping[str, tuple[Weight, ...]] = {
    "last": ("head",),
    "adapters": ("down", "up"),
    "all": ("down", "up", "head"),
}


class LaplaceSettings(MethodSettings):
    """A normal distribution from the curvature of the loss (Laplace)."""

    name: Literal["laplace"] = "laplace"
    """The method."""
    layers: Literal["last", "adapters", "all"] = "all"
    """`last` samples the heads, `adapters` samples A and B, `all` samples both."""
    structure: Literal["diagonal", "kron"] = optional("diagonal")
    """Of the curvature: its diagonal, or Kronecker factors of every matrix."""
    prior_precision: Positive | None = optional(None)
    """Of every element; if not set, the best of 1, 10, ..., 1e8 on the calibration part."""
    images: PositiveInt = 256
    """Number of training images, evenly spaced, that the fit uses."""


class LaplaceMethod(_FittedMethod[LaplaceSettings]):
    """Noise on the tensors of the chosen layers."""

    settings_type = LaplaceSettings

    def __init__(self, settings: LaplaceSettings, shape: NetworkShape) -> None:
        self.sampled_weights = _LAYERS[settings.layers]
        self.rotated = settings.structure == "kron"
        super().__init__(settings, shape)

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        assert isinstance(settings, LaplaceSettings)
        keys = super().required_keys(settings)
        if settings.prior_precision is not None:
            return keys
        # The split of the paper may have no calibration part, and the test part may choose nothing.
        return {**keys, "data.split": ("lesion", "lesion-validation", "lesion-best-epoch")}

    def fit(self, network: AdaptedVisionTransformer, run: FinishedRun) -> LaplaceSettings:
        """Sets the posterior; without a prior precision, that with the lowest NLL of mode stoch."""
        settings = self.settings
        pixels, _ = run.inputs("train", settings.images)
        scale = run.image_count / len(pixels)
        if self.rotated:
            decomposed = _laws(_kronecker_factors(network, pixels), scale)
            set_precision = partial(_set_kronecker_posterior, network, decomposed)
        else:
            diagonal = _gauss_newton_diagonal(network, pixels)
            scaled = {name: value * scale for name, value in diagonal.items()}
            set_precision = partial(_set_posterior, network, scaled)
        precision = settings.prior_precision
        if precision is None:
            tested, labels = run.inputs("calibration", settings.images)

            def loss(precision: float) -> float:
                set_precision(precision)
                probabilities = _predicted_probabilities(network, tested)
                of_labels = probabilities[torch.arange(len(probabilities)), labels]
                tiny = torch.finfo(of_labels.dtype).tiny
                return -of_labels.clamp_min(tiny).log().mean().item()

            precision = min(_PRIOR_PRECISIONS, key=loss)
        set_precision(precision)
        fitted = {"prior_precision": precision, "images": len(pixels)}
        return settings.model_copy(update=fitted)


def _gauss_newton_diagonal(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    """The diagonal summed over images, by the name of the parameter without `_root`.

    For the cross-entropy of a softmax the matrix is the Fisher information: the mean over classes y
    with their probabilities p(y) of the squared gradient of log p(y). The network has normal
    weights; its scales are set to 1, so that the gradient of a row's noise is that of its weights.
    """
    with torch.no_grad():
        for name, parameter in network.adapter_parameters():
            if name.endswith("_root"):
                parameter.fill_(1.0)
    total: dict[str, Tensor] = {}
    for part in images.split(_CURVATURE_BATCH):
        for name, value in _part_diagonal(network, part).items():
            total[name] = total[name] + value if name in total else value
    return total


def _part_diagonal(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, Tensor]:
    adapters = network.settings.adapters
    rows = Rows.of([1] * len(images), adapters).to(images.device)
    drawn = network.method.sample(1, Generator()).repeated(len(images)).to(images)
    det = network.method.det().repeated(len(images)).to(images)
    blocks = {name: _zeros(drawn.blocks[name]) for name in drawn.blocks.keys() - det.blocks.keys()}
    head = {name: _zeros(values) for name, values in drawn.head.items()}
    leaves = {f"blocks.{name}": values for name, values in blocks.items()}
    leaves |= {f"heads.{name}": values for name, values in head.items()}
    logits = network(images, rows, RowDraws({**det.blocks, **blocks}, head))
    log_probabilities = logits.log_softmax(dim=-1)
    squares = {name: torch.zeros_like(values) for name, values in leaves.items()}
    for of_class in log_probabilities.unbind(dim=-1):
        gradients = torch.autograd.grad(of_class.sum(), list(leaves.values()), retain_graph=True)
        weight = of_class.detach().exp()
        for name, gradient in zip(squares, gradients, strict=True):
            squares[name] += weight.view(-1, *[1] * (gradient.ndim - 1)) * gradient.square()
    total: dict[str, Tensor] = {}
    for name, square in squares.items():
        by_adapter = square.new_zeros(adapters, *square.shape[1:])
        by_adapter.index_add_(0, rows.adapter, square)
        if name.startswith("blocks."):  # (adapters, blocks, 4, rank, width)
            for index, value in enumerate(by_adapter.unbind(dim=1)):
                total[f"blocks.{index}.{name.removeprefix('blocks.')}"] = value.transpose(0, 1)
        else:
            total[name] = by_adapter
    return total


def _set_posterior(
    network: AdaptedVisionTransformer, diagonal: Mapping[str, Tensor], prior_precision: float
) -> None:
    with torch.no_grad():
        for name, value in diagonal.items():
            variance = 1 / (value + prior_precision)
            network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())


def _zeros(values: Tensor) -> Tensor:
    return torch.zeros_like(values, requires_grad=True)


@dataclass(frozen=True)
class _Recorded:
    """The inputs of A and B of a projection, and their outputs, all (rows, tokens, ...)."""

    inputs: Tensor
    directions: Tensor
    weighted: Tensor
    adapted: Tensor


@dataclass(frozen=True)
class _RecordingBlock(ProjectedBlock):
    """`adapted_block` that keeps inputs and outputs of A and B in `records`."""

    records: list[_Recorded] = field(default_factory=list)

    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        down: Tensor,
        up: Tensor,
        coefficients: Tensor,
    ) -> Tensor:
        directions = grouped_linear(inputs, down)
        weighted = directions * coefficients.unsqueeze(1)
        adapted = grouped_linear(weighted, up.mT)
        self.records.append(_Recorded(inputs, directions, weighted, adapted))
        return F.linear(inputs, weight, bias) + adapted


@dataclass(frozen=True)
class _Factors:
    """Kronecker factors of a matrix for every adapter.

    Attributes:
        left: (..., rows, rows).
        right: (..., columns, columns); None for a vector.
    """

    left: Tensor
    right: Tensor | None


@dataclass(frozen=True)
class _Law(_Factors):
    """The eigenvectors of both factors, and the curvature in these bases.

    Attributes:
        curvature: (..., rows, columns).
    """

    curvature: Tensor


def _kronecker_factors(network: AdaptedVisionTransformer, images: Tensor) -> dict[str, _Factors]:
    """The factors of heads and sampled adapters over the images, by parameter name."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for part in images.split(_CURVATURE_BATCH):
        for name, (left, right) in _covariances(network, part):
            before = sums.get(name, (torch.zeros_like(left), torch.zeros_like(right)))
            sums[name] = before[0] + left, before[1] + right
    count = len(images)
    factors: dict[str, _Factors] = {}
    for name, (left, right) in sums.items():
        # The factor of the inputs is a mean, that of the gradients a sum.
        if name.endswith(".up"):
            factors[name] = _Factors(left / count, right)
        else:
            factors[name] = _Factors(left, right / count)
    return factors | {"heads.bias": _Factors(factors["heads.weight"].left, None)}


def _laws(factors: Mapping[str, _Factors], scale: float) -> dict[str, _Law]:
    """The eigenvectors and the curvature times `scale` of the factors, by name."""
    decomposed = {}
    for name, of_name in factors.items():
        values, left = torch.linalg.eigh(of_name.left.double())
        curvature = scale * values.clamp_min(0)
        right: Tensor | None = None
        if of_name.right is not None:
            values, right = torch.linalg.eigh(of_name.right.double())
            curvature = curvature.unsqueeze(-1) * values.clamp_min(0).unsqueeze(-2)
        decomposed[name] = _Law(left, right, curvature)
    return decomposed


@torch.no_grad()
def _set_kronecker_posterior(
    network: AdaptedVisionTransformer, laws: Mapping[str, _Law], prior_precision: float
) -> None:
    """Sets bases and scales of the network's sampled weights to those of the posterior."""
    sampled = dict(network.adapter_parameters())
    for name, law in laws.items():
        if f"{name}_root" not in sampled:
            continue
        sampled[f"{name}_root"].copy_((law.curvature + prior_precision) ** -0.25)
        sampled[f"{name}_left"].copy_(law.left)
        if law.right is not None:
            sampled[f"{name}_right"].copy_(law.right)


def _covariances(
    network: AdaptedVisionTransformer, images: Tensor
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yields the name and both factors, summed over the images, of every matrix."""
    adapters, block = network.settings.adapters, _RecordingBlock()
    features: list[Tensor] = []
    rows = Rows.of([1] * len(images), adapters).to(images.device)
    hook = network.heads.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    draws = network.method.det().repeated(len(images)).to(images)
    log_p = network(images, rows, draws, block=block).log_softmax(dim=-1)
    hook.remove()
    p = log_p.detach().exp()
    errors = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)  # (rows, classes, classes)
    of_heads = errors[rows.positions].sum(dim=1)
    of_features = _moments(features[0][rows.positions.flatten()].unsqueeze(1), adapters, mean=True)
    yield "heads.weight", (of_heads, of_features)
    first = network.blocks[0]
    if not isinstance(first, GaussianAdapters) or not first.sampled:
        return
    outputs = [tensor for r in block.records for tensor in (r.directions, r.adapted)]
    gradients = [torch.zeros(()).to(images)] * len(outputs)
    for of_class in log_p.unbind(dim=-1):
        weight = of_class.detach().exp().sqrt()[rows.positions].view(-1, 1, 1)
        by_output = torch.autograd.grad(of_class.sum(), outputs, retain_graph=True)
        gradients = [
            total + _moments(weight * gradient, adapters, mean=False)
            for total, gradient in zip(gradients, by_output, strict=True)
        ]
    for index in range(network.depth):
        numbers = range(len(PROJECTIONS) * index, len(PROJECTIONS) * (index + 1))
        down: list[Tensor] = []
        up: list[Tensor] = []
        for number in numbers:
            record = block.records[number]
            down += [gradients[2 * number], _moments(record.inputs, adapters, mean=True)]
            up += [_moments(record.weighted, adapters, mean=True), gradients[2 * number + 1]]
        yield f"blocks.{index}.down", (torch.stack(down[::2]), torch.stack(down[1::2]))
        yield f"blocks.{index}.up", (torch.stack(up[::2]), torch.stack(up[1::2]))


def _moments(vectors: Tensor, adapters: int, mean: bool) -> Tensor:
    """Sums of outer products of the vectors of each adapter, (adapters, size, size).

    `vectors` are (rows, tokens, size), adapter by adapter. `mean` averages over tokens instead of
    summing.
    """
    parts = vectors.detach().reshape(adapters, -1, vectors.shape[-1])
    return parts.mT @ parts / (vectors.shape[1] if mean else 1)
