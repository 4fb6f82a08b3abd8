"""The training objective: a network, the random input of a step, and a weighted loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, TypeVarTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.fit.ivon import Posterior

StepDraw = TypeVar("StepDraw")
"""The random input of a step."""
Inputs = TypeVarTuple("Inputs")


class Objective(ABC, Generic[StepDraw]):
    """The loss of a network whose trainable parameters a run fits.

    A batch's loss is the sum of its parts' losses divided by the sum of their weights, so that it
    does not depend on micro-batches and processes. Padding has loss and weight 0.
    rows_per_image: rows of the network for one image. posterior: that IVON fits; None for other
    optimisers.
    """

    def __init__(
        self, network: nn.Module, rows_per_image: int = 1, posterior: Posterior | None = None
    ) -> None:
        self.network = network
        self.rows_per_image, self.posterior = rows_per_image, posterior

    @abstractmethod
    def draw(self, seed: int, step: int, process: int) -> StepDraw:
        """Returns the random input of a step; it is the same for all micro-batches."""

    @abstractmethod
    def loss(
        self, network: Callable[..., Any], images: Tensor, labels: Tensor, draw: StepDraw
    ) -> Tensor:
        """Returns the summed, weighted loss of a part of a batch: a scalar.

        network: `self.network`, possibly wrapped for several processes. images: (n, 3, size,
        size). labels: (n,), or (n, classes) target probabilities.
        """

    @abstractmethod
    def weight(self, labels: Tensor) -> Tensor:
        """Returns the summed weight of a part of a batch: a scalar."""

    def after_step(self) -> None:
        """Runs after each optimiser step."""

    def after_epoch(self) -> None:
        """Runs after the last step of each epoch."""

    def epoch_metrics(self) -> Mapping[str, float]:
        """Returns the metrics of the last epoch besides its loss, such as `validation_nll`."""
        return {}

    @property
    def finished(self) -> bool:
        """True if further epochs are not worth while; the state in `averages` decides it."""
        return False

    def averages(self) -> Mapping[str, Tensor]:
        """Returns the tensors that `after_step` and `after_epoch` change; a run stores them."""
        return {}


def recomputed(block: Callable[[*Inputs], Tensor]) -> Callable[[*Inputs], Tensor]:
    """Returns a function with the same value and gradient that stores only its inputs.

    The backward pass computes the block again (activation checkpointing). The block must not draw
    random numbers, because the generator's state is not restored.
    """

    def checkpointed(*inputs: *Inputs) -> Tensor:
        output: Tensor = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
        return output

    return checkpointed


class RecomputedBlocks(nn.Sequential):
    """A sequence of blocks with activation checkpointing."""

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self:
            tokens = recomputed(block)(tokens)
        return tokens
