"""IVON, a variational Newton method (Shen et al., "Variational Learning is Effective for Large Deep
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

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eulerlora.methods.gaussian import GaussianWeightsMethod
from eulerlora.nn.method import MethodSettings, TrainingKeys
from eulerlora.settings import AdapterSettings
from eulerlora_client.settings import Positive

MOMENTUM = 0.9
ROOT = "_root"
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
    own_optimiser = True

    @classmethod
    def check_recipe(cls, adapters: AdapterSettings, training: TrainingKeys) -> None:
        super().check_recipe(adapters, training)
        if not training.sampling or training.weight_decay == 0:
            raise ValueError(
                "expected training.sampling=true and a training.weight_decay above 0 with method "
                "ivon"
            )

    def optimiser(
        self, parameters: Mapping[str, nn.Parameter], images: int, weight_decay: float
    ) -> "IVON":
        """Returns IVON. The loss is a mean over adapters, each with a posterior from all images."""
        means = [name for name in parameters if f"{name}{ROOT}" in parameters]
        assert len(parameters) == 2 * len(means)
        return IVON(
            [parameters[name] for name in means],
            [parameters[f"{name}{ROOT}"] for name in means],
            effective_images=images * self.adapters.adapters / self.settings.kl_weight,
            initial_curvature=self.settings.initial_curvature,
            curvature_decay=self.settings.curvature_decay,
            weight_decay=weight_decay,
        )


class IVON(torch.optim.Optimizer):
    """Fits means and standard deviations of weights.

    means, roots: parameters in the same order, in two groups; root^2 is the standard deviation of
    a weight. The constructor sets the roots to those of the initial curvature, and training clips
    gradients of means only: clipped ones of standard deviations are no measure of curvature.
    effective_images: n. initial_curvature: h0. curvature_decay: b2. weight_decay: d, greater than 0
    if the curvature may reach 0.
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
            state["exp_avg"].lerp_(mean.grad, 1 - MOMENTUM)
            gradient = state["exp_avg"] / (1 - MOMENTUM ** state["step"].item())
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
