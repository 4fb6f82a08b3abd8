"""Variational methods, which learn the scales of normal laws together with their means.

BLoB (Wang et al., NeurIPS 2024): normal elements of A. ScalaBL (Samplawski et al., UAI 2025):
normal coefficients with learned mean and scale,

    c = mean + scale * z,    z standard normal, one for each direction, projection and row

In mode det, A and c are their means. Both have a divergence from a prior in the loss.

IVON is a variational Newton method (Shen et al., "Variational Learning is Effective for Large Deep
Networks", ICML 2024).

Every weight is normal with mean m and standard deviation s = 1 / sqrt(n (h + d)), with the
curvature h of the mean loss, the effective number of images n and the weight decay d. A step with
the gradient g of the mean loss at sampled weights:

    e = g (weight - m) / s^2                            curvature at the samples (Price's theorem)
    h = b2 h + (1 - b2) e + (1 - b2)^2 (h - e)^2 / (2 (h + d))
    v = b1 v + (1 - b1) g
    m = m - rate (h0 + d) (v / (1 - b1^step) + d m) / (h + d)

The network samples the weights, with `root`^2 as their standard deviation. The gradient of m is
then g, and that of s is g (weight - m) / s; both are sums over rows, micro-batches and processes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from eulerlora.nn.method import (
    COEFFICIENTS,
    AttentionAdapters,
    BlockAdapters,
    BlockRows,
    MethodSettings,
    NetworkShape,
    RowDraws,
    initial_bound,
)
from eulerlora.sampling.masks import PROJECTIONS, AdapterSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import NotNegative, Positive
from eulerlora_lab.methods.gaussian import (
    WITHOUT_DROPOUT,
    GaussianAdapters,
    GaussianWeightsMethod,
    NoiseMethod,
    Weight,
    divergence,
)

_COEFFICIENT_NOISE = "coefficient_noise"


class BLoBSettings(MethodSettings):
    """Normal elements of A with learned means and scales, with new noise per row (BLoB)."""

    name: Literal["blob"] = "blob"
    """The method."""
    initial_scale: Positive = 0.2
    """Greatest initial standard deviation, in units of that of the initial A."""
    prior_scale: Positive = 20.0
    """Standard deviation of the prior in the same units; its mean is 0."""
    kl_weight: NotNegative = 0.01
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class _BLoBAdapters(GaussianAdapters):
    """The directions of one block with learned normal `down`."""

    down_root: nn.Parameter

    def __init__(self, width: int, adapters: AdapterSettings, settings: BLoBSettings) -> None:
        super().__init__(width, adapters, ("down",))
        self.settings = settings
        self.unit = initial_bound(adapters, width) / math.sqrt(3)
        """Standard deviation of the initial elements of `down`."""

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` and its scales: uniform between half of initial_scale and initial_scale."""
        super().initialise(generator)
        greatest = math.sqrt(self.settings.initial_scale * self.unit)
        self.down_root.uniform_(greatest / math.sqrt(2), greatest, generator=generator)

    def divergence(self) -> Tensor:
        settings = self.settings
        prior_scale = settings.prior_scale * self.unit
        return settings.kl_weight * divergence(self.down, self.down_root.square(), prior_scale)


class BLoBMethod(GaussianWeightsMethod[BLoBSettings]):
    """Noise on A; in training, every row of every image has its own."""

    settings_type = BLoBSettings
    sampled_weights: tuple[Weight, ...] = ("down",)
    noise_per_image = True

    def block(self, index: int) -> BlockAdapters:
        return _BLoBAdapters(self.shape.backbone.width, self.adapters, self.settings)


class GaussianCoefficientsSettings(MethodSettings):
    """Normal coefficients with learned mean and scale, after ScalaBL."""

    name: Literal["gaussian-coefficients"] = "gaussian-coefficients"
    """The method."""
    initial_scale: Positive = 0.1
    """Greatest initial standard deviation; the initial mean is 1."""
    prior_scale: Positive = 1.0
    """Standard deviation of the prior, whose mean is 0."""
    kl_weight: NotNegative = 1.0
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class _GaussianCoefficientAdapters(AttentionAdapters):
    """The directions of one block and the law of their coefficients.

    Attributes:
        mean: (4, adapters, rank), of the coefficients.
        log_scale: (4, adapters, rank), of the coefficients.
    """

    def __init__(
        self, width: int, adapters: AdapterSettings, settings: GaussianCoefficientsSettings
    ) -> None:
        super().__init__(width, adapters)
        self.settings = settings
        shape = (len(PROJECTIONS), adapters.adapters, adapters.rank)
        self.mean = nn.Parameter(torch.zeros(shape))
        self.log_scale = nn.Parameter(torch.zeros(shape))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws `down` with orthogonal rows and the scales; sets the means to 1 and `up` to zero.

        The rows of `down` are right singular vectors times singular values of the usual initial
        matrix. Scales are uniform between initial_scale / sqrt(2) and initial_scale.
        """
        super().initialise(generator)
        _, values, vectors = torch.linalg.svd(self.down, full_matrices=False)
        self.down.copy_(values.unsqueeze(-1) * vectors)
        self.mean.fill_(1.0)
        greatest = self.settings.initial_scale
        self.log_scale.uniform_(greatest / math.sqrt(2), greatest, generator=generator).log_()

    @property
    def det_down(self) -> Tensor:
        return self.mean.unsqueeze(-1) * self.down

    def coefficients(self, rows: BlockRows) -> Tensor:
        """(rows, 4, rank)."""
        mean, log_scale = (
            of_adapters.index_select(1, rows.adapter).transpose(0, 1)
            for of_adapters in (self.mean, self.log_scale)
        )
        coefficients = rows.draws[COEFFICIENTS] * mean
        if _COEFFICIENT_NOISE not in rows.draws:
            return coefficients
        return coefficients + rows.draws[_COEFFICIENT_NOISE] * log_scale.exp()

    def divergence(self) -> Tensor:
        settings = self.settings
        exact = divergence(self.mean, self.log_scale.exp(), settings.prior_scale)
        return settings.kl_weight * exact


class GaussianCoefficientsMethod(NoiseMethod[GaussianCoefficientsSettings]):
    """Coefficients with noise."""

    settings_type = GaussianCoefficientsSettings

    def __init__(self, settings: GaussianCoefficientsSettings, shape: NetworkShape) -> None:
        super().__init__(settings, shape)
        width, rank = shape.backbone.width, shape.adapters.rank
        if rank > width:
            raise SettingsError(f"adapters.rank: expected a rank of at most {width}, got {rank}")
        self.noise = {_COEFFICIENT_NOISE: (self.depth, len(PROJECTIONS), self.adapters.rank)}

    def block(self, index: int) -> BlockAdapters:
        width = self.shape.backbone.width
        return _GaussianCoefficientAdapters(width, self.adapters, self.settings)

    def with_noise(self, coefficients: Tensor, noise: Mapping[str, Tensor]) -> RowDraws:
        return RowDraws({COEFFICIENTS: coefficients, **noise})


_MOMENTUM = 0.9
_ROOT = "_root"
"""Ending of the name of the parameter with the roots of a parameter's standard deviations."""


class IVONSettings(MethodSettings):
    """Normal weights of adapters and heads from variational online Newton training (IVON)."""

    name: Literal["ivon"] = "ivon"
    """The method."""
    initial_curvature: Positive = 0.1
    """Of the mean loss, for each weight."""
    curvature_decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Of the running curvature, for each step."""
    kl_weight: Positive = 0.01
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class IVONMethod(GaussianWeightsMethod[IVONSettings]):
    """Noise on A, B and the heads, whose law the optimiser fits."""

    settings_type = IVONSettings

    @classmethod
    def required_keys(cls, settings: MethodSettings) -> Mapping[str, Collection[object]]:
        return {**WITHOUT_DROPOUT, "training.sampling": (True,)}

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], images: int, weight_decay: float
    ) -> "IVON":
        """The loss is a mean over adapters, each with a posterior from all images.

        Raises:
            SettingsError: Without weight decay, the precision of the prior.
        """
        if weight_decay == 0:
            raise SettingsError("training.weight_decay: expected a value above 0 with ivon, got 0")
        means = [name for name in parameters if f"{name}{_ROOT}" in parameters]
        assert len(parameters) == 2 * len(means)
        return IVON(
            [parameters[name] for name in means],
            [parameters[f"{name}{_ROOT}"] for name in means],
            effective_images=images * self.adapters.adapters / self.settings.kl_weight,
            initial_curvature=self.settings.initial_curvature,
            curvature_decay=self.settings.curvature_decay,
            weight_decay=weight_decay,
        )


class IVON(torch.optim.Optimizer):
    """Fits means and standard deviations of weights.

    `means` and `roots` are two groups of parameters in the same order; root^2 is the standard
    deviation of a weight. The constructor sets the roots to those of the initial curvature, and
    training clips gradients of means only: clipped ones of standard deviations are no measure of
    curvature. The weight decay is greater than 0 if the curvature may reach 0.
    """

    def __init__(
        self,
        means: Sequence[nn.Parameter],
        roots: Sequence[nn.Parameter],
        effective_images: float,
        initial_curvature: float,
        curvature_decay: float,
        weight_decay: float,
    ) -> None:
        groups = [{"params": list(means)}, {"params": list(roots)}]
        super().__init__(groups, {"lr": 0.0})
        self.means, self.roots = means, roots
        self.effective_images, self.initial_curvature = effective_images, initial_curvature
        self.curvature_decay, self.weight_decay = curvature_decay, weight_decay
        for mean, root in zip(means, roots, strict=True):
            self.state[mean] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(mean),
                "curvature": torch.full_like(mean, initial_curvature),
            }
            self._set_root(mean, root)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates curvatures, means and standard deviations from the gradients."""
        assert closure is None
        rate = self.param_groups[0]["lr"] * (self.initial_curvature + self.weight_decay)
        for mean, root in zip(self.means, self.roots, strict=True):
            assert mean.grad is not None
            assert root.grad is not None
            state = self.state[mean]
            state["step"] += 1
            state["exp_avg"].lerp_(mean.grad, 1 - _MOMENTUM)
            gradient = state["exp_avg"] / (1 - _MOMENTUM ** state["step"].item())
            # The gradient of s is that of the root over 2 root.
            self._add_curvature(state["curvature"], root.grad / (2 * root**3))
            precision = state["curvature"] + self.weight_decay
            mean.sub_(rate * (gradient + self.weight_decay * mean) / precision)
            self._set_root(mean, root)

    def _add_curvature(self, curvature: Tensor, estimate: Tensor) -> None:
        """Updates the running curvature in place; it stays above minus the weight decay."""
        change = (1 - self.curvature_decay) * (estimate - curvature)
        correction = change.square() / (2 * (curvature + self.weight_decay))
        curvature.add_(change).add_(correction)

    @torch.no_grad()
    def _set_root(self, mean: nn.Parameter, root: nn.Parameter) -> None:
        precision = self.state[mean]["curvature"] + self.weight_decay
        root.copy_((self.effective_images * precision) ** -0.25)
