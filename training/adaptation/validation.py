"""The validation metrics of every epoch, and the adapters of the best epoch."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.settings import Draw, Provenance
from eulerlora_contract.sampling import Mode, Views
from training.data.images import LabelledImage, pixel_batches
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import classification_metrics

_BATCH = 64
_EPOCH_METRICS = ("nll", "accuracy", "ece", "brier")


class EpochValidation:
    """Measures every epoch on the validation images; may keep the best adapters.

    Attributes:
        samples: Of mode stoch, which is measured too; with 0 only det. The draws of an image are
            the same in every epoch.
        views: Of mode stoch.
        keep_best: Keeps the adapters of the epoch with the lowest NLL in mode det.
        tensors: The state, which changes in place: the kept adapters, `MODE.METRIC.by_epoch`
            (epochs,), and `epoch`, the number of validated epochs.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        images: Sequence[LabelledImage],
        epochs: int,
        samples: int = 0,
        keep_best: bool = True,
        views: Views = 1,
    ) -> None:
        self.network, self.samples, self.keep_best = network, samples, keep_best
        self.views = views
        self.images = images
        self.labels = np.array([image.label for image in images])
        self.modes: tuple[Mode, ...] = ("det", "stoch") if samples else ("det",)
        by_epoch = {
            f"{mode}.{metric}.by_epoch": torch.zeros(epochs)
            for mode in self.modes
            for metric in _EPOCH_METRICS
        }
        self.tensors: Mapping[str, Tensor] = (
            {f"kept.{name}": p.detach().clone() for name, p in self._kept()}
            | by_epoch
            | {"epoch": torch.zeros(())}
        )

    def validate(self) -> None:
        """Measures the epoch that has ended; keeps its adapters if it is the best one so far."""
        epoch = int(self.tensors["epoch"])
        for mode in self.modes:
            metrics = classification_metrics(
                self._log_probabilities(mode), self.labels, unit_weights(len(self.labels))
            )
            for metric in _EPOCH_METRICS:
                self.tensors[f"{mode}.{metric}.by_epoch"][epoch] = metrics[metric].item()
        self.tensors["epoch"] += 1
        if self._best() == epoch + 1:
            for name, parameter in self._kept():
                self.tensors[f"kept.{name}"].copy_(parameter.detach())

    @torch.no_grad()
    def result(self) -> Provenance:
        """The metrics by mode and epoch.

        Sets the network to the kept adapters, if any, and adds their epoch, counted from 1.
        """
        for name, parameter in self._kept():
            parameter.copy_(self.tensors[f"kept.{name}"])
        epochs = int(self.tensors["epoch"])
        return {
            **({"best_epoch": self._best()} if self.keep_best else {}),
            "validation_images": len(self.labels),
            "validation_by_epoch": {
                mode: {
                    metric: self.tensors[f"{mode}.{metric}.by_epoch"][:epochs].tolist()
                    for metric in _EPOCH_METRICS
                }
                for mode in self.modes
            },
        }

    @property
    def last(self) -> dict[str, float]:
        """The NLL and accuracy of the last epoch in mode det, and the best epoch, from 1."""
        epoch = int(self.tensors["epoch"]) - 1
        return {
            "validation_nll": self.tensors["det.nll.by_epoch"][epoch].item(),
            "validation_accuracy": self.tensors["det.accuracy.by_epoch"][epoch].item(),
            "best_epoch": float(self._best()),
        }

    def _best(self) -> int:
        """The first epoch with the lowest NLL, counted from 1; 0 before the first."""
        losses = self.tensors["det.nll.by_epoch"][: int(self.tensors["epoch"])]
        return int(losses.nan_to_num(nan=torch.inf).argmin()) + 1 if len(losses) else 0

    def _kept(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.network.adapter_parameters()) if self.keep_best else []

    def _log_probabilities(self, mode: Mode) -> Tensor:
        """(n, trajectories, classes), on the CPU."""
        device = next(self.network.parameters()).device
        samples, views = (self.samples, self.views) if mode == "stoch" else (1, 1)
        seeds = itertools.count()
        outputs: list[Tensor] = []
        for pixels in pixel_batches(self.images, self.network.preprocessing, _BATCH):
            draws = [
                Draw(mode=mode, samples=samples, seed=next(seeds), views=views) for _ in pixels
            ]
            predicted = predict_images(self.network, pixels.to(device), draws)
            outputs += [trajectories.flat_log_probabilities for trajectories in predicted]
        return torch.cat(outputs)
