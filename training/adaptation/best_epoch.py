"""The adapters of the epoch with the best validation, and the metrics of every epoch."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from eulerlora.config import Provenance
from eulerlora.inference import predict_images
from eulerlora.preprocess import resize
from eulerlora.settings import Draw
from eulerlora.vision_transformer import AdaptedVisionTransformer
from training.data.labelled_images import LabelledImage
from training.data.sources import read_image

BATCH = 64
DET = Draw(mode="det")


class BestEpoch:
    """Keeps the adapters of the epoch with the lowest validation loss.

    tensors: the state, which changes in place: the kept adapters, `loss.by_epoch` (epochs,) and
    `accuracy.by_epoch` (epochs,) of mode det on the validation images, and `epoch`, the number of
    validated epochs.
    """

    def __init__(
        self, network: AdaptedVisionTransformer, images: Sequence[LabelledImage], epochs: int
    ) -> None:
        self.network = network
        size = network.backbone.image_size
        self.pixels = torch.stack([resize(read_image(i.name, i.source), size) for i in images])
        self.labels = torch.tensor([image.label for image in images])
        kept = {f"kept.{name}": p.detach().clone() for name, p in network.adapter_parameters()}
        self.tensors: Mapping[str, Tensor] = kept | {
            "loss.by_epoch": torch.zeros(epochs),
            "accuracy.by_epoch": torch.zeros(epochs),
            "epoch": torch.zeros(()),
        }

    def validate(self) -> None:
        """Measures the epoch that has ended; keeps its adapters if none before had a lower loss."""
        epoch = int(self.tensors["epoch"])
        log_probabilities = self._log_probabilities()
        losses = self.tensors["loss.by_epoch"]
        losses[epoch] = -log_probabilities[torch.arange(len(self.labels)), self.labels].mean()
        correct = log_probabilities.argmax(dim=-1) == self.labels
        self.tensors["accuracy.by_epoch"][epoch] = correct.float().mean()
        self.tensors["epoch"] += 1
        if losses[epoch] == losses[: epoch + 1].min():
            for name, parameter in self.network.adapter_parameters():
                self.tensors[f"kept.{name}"].copy_(parameter.detach())

    @torch.no_grad()
    def restore(self) -> Provenance:
        """Sets the network to the kept adapters; returns the epoch, from 1, and all metrics."""
        for name, parameter in self.network.adapter_parameters():
            parameter.copy_(self.tensors[f"kept.{name}"])
        losses = self.tensors["loss.by_epoch"]
        return {
            "best_epoch": int(losses.argmin()) + 1,
            "validation_images": len(self.labels),
            "validation_loss_by_epoch": losses.tolist(),
            "validation_accuracy_by_epoch": self.tensors["accuracy.by_epoch"].tolist(),
        }

    def _log_probabilities(self) -> Tensor:
        """Returns (n, classes), the logarithm of the mean probability in mode det, on the CPU."""
        device = next(self.network.parameters()).device
        outputs = []
        for part in self.pixels.split(BATCH):
            for output in predict_images(self.network, part.to(device), [DET] * len(part)):
                trajectories = output.log_probabilities
                outputs.append(trajectories.logsumexp(dim=0) - math.log(len(trajectories)))
        return torch.stack(outputs).float().cpu()
