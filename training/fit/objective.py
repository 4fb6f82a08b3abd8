"""What a run minimises: a summed loss and the weight that it is divided by."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """A module whose parameters are trained; called with a part of a batch.

    A batch's loss is the sum of its parts' losses over the sum of their weights, so that it does
    not matter how a batch is cut into micro-batches or spread over processes. Images with a
    negative label, or with no class at all, are padding: they have no loss and no weight.
    """

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """The summed, weighted loss of some images of a step's batch: a scalar.

        images: (n, 3, size, size). labels: (n,), or (n, classes) shares of classes.
        """

    @abstractmethod
    def weight(self, labels: Tensor) -> Tensor:
        """The summed weight of some images: a scalar."""

    @abstractmethod
    def rows_per_image(self) -> int:
        """Rows of the network that one image takes."""

    def stepped(self) -> None:
        """Called after each optimiser step."""

    def averages(self) -> Mapping[str, Tensor]:
        """What steps change besides the trained parameters; a run's state keeps it too."""
        return {}
