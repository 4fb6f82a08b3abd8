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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.9


@dataclass(frozen=True)
class Posterior:
    """The law of the weights.

    effective_images: n. initial_curvature: h0. curvature_decay: b2.
    """

    effective_images: float
    initial_curvature: float
    curvature_decay: float


class IVON(torch.optim.Optimizer):
    """Fits means and standard deviations of weights.

    means, roots: parameters in the same order; root^2 is the standard deviation of a weight. The
    constructor sets the roots to those of the initial curvature. weight_decay: d, greater than 0 if
    the curvature may reach 0.
    """

    def __init__(
        self,
        means: Sequence[nn.Parameter],
        roots: Sequence[nn.Parameter],
        posterior: Posterior,
        weight_decay: float,
    ) -> None:
        super().__init__([*means, *roots], {"lr": 0.0})
        self.means, self.roots = means, roots
        self.posterior, self.weight_decay = posterior, weight_decay
        for mean, root in zip(means, roots, strict=True):
            self.state[mean] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(mean),
                "curvature": torch.full_like(mean, posterior.initial_curvature),
            }
            self._set_root(mean, root)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates curvatures, means and standard deviations from the gradients."""
        assert closure is None
        rate = self.param_groups[0]["lr"] * (self.posterior.initial_curvature + self.weight_decay)
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
        change = (1 - self.posterior.curvature_decay) * (estimate - curvature)
        correction = change.square() / (2 * (curvature + self.weight_decay))
        curvature.add_(change).add_(correction)

    @torch.no_grad()
    def _set_root(self, mean: nn.Parameter, root: nn.Parameter) -> None:
        precision = self.state[mean]["curvature"] + self.weight_decay
        root.copy_((self.posterior.effective_images * precision) ** -0.25)
