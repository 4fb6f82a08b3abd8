"""What a network gives for images (`eulerlora.answer.Predictions` says what it means)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora_contract.errors import NonFiniteError


@dataclass(frozen=True)
class Trajectories:
    """What a network gives for n images; on the CPU.

    Images may have different numbers of samples: behind the last one of an image, values are NaN
    and views 0. In mode det, samples are views.

    Attributes:
        log_probabilities: (n, adapters, samples, classes) float64; NaN for a row with a logit that
            is not finite.
        log_partition: (n, adapters, samples) float64, log-sum-exp of the logits.
        features: (n, adapters, samples, d) float32 (`eulerlora.nn.network.NetworkOutput`).
        views: (n, adapters, samples) int64, the view of each trajectory (`eulerlora.nn.rows`).
        samples: (n,) int64, the number of samples of each image.
    """

    log_probabilities: Tensor
    log_partition: Tensor
    features: Tensor
    views: Tensor
    samples: Tensor

    @classmethod
    def of(cls, logits: Tensor, features: Tensor, views: Tensor) -> "Trajectories":
        """From logits (n, adapters, samples, classes), float64."""
        unusable = ~logits.isfinite().all(dim=-1, keepdim=True)
        return cls(
            log_probabilities=logits.log_softmax(dim=-1).masked_fill(unusable, torch.nan),
            log_partition=logits.logsumexp(dim=-1),
            features=features,
            views=views,
            samples=torch.full(logits.shape[:1], logits.shape[2]),
        )

    @classmethod
    def cat(cls, parts: Sequence["Trajectories"]) -> "Trajectories":
        """Joins the images of all parts, of which there is at least one."""
        most = max(part.views.shape[2] for part in parts)

        def padded(values: Tensor) -> Tensor:
            behind = [0, 0] * (values.ndim - 3) + [0, most - values.shape[2]]
            return F.pad(values, behind, value=_padding(values))

        return cls(
            *(
                torch.cat([values if values.ndim == 1 else padded(values) for values in of_parts])
                for of_parts in zip(*(part._tensors for part in parts), strict=True)
            )
        )

    @classmethod
    def of_ensemble(cls, members: Sequence["Trajectories"]) -> "Trajectories":
        """Joins the trajectories of all members for the same images, one after the other."""
        columns = zip(*(member._tensors[:-1] for member in members), strict=True)
        return cls(*[*(torch.cat(column, dim=1) for column in columns), members[0].samples])

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def flat_log_probabilities(self) -> Tensor:
        """(n, trajectories, classes), adapter by adapter."""
        return self.log_probabilities.flatten(1, 2)

    def check_finite(self) -> None:
        """Checks that every probability is finite, except behind the last sample.

        Raises:
            NonFiniteError: If one is NaN.
        """
        if math.isfinite(self.log_probabilities.sum()):
            return
        numbers = torch.arange(self.views.shape[2])
        expected = (numbers < self.samples[:, None])[:, None, :, None]  # (n, 1, samples, 1)
        if not (self.log_probabilities.isfinite() | ~expected).all():
            raise NonFiniteError("expected finite logits from the network, got NaN or infinity")

    def images(self, indices: slice | Tensor) -> "Trajectories":
        return Trajectories(*(values[indices] for values in self._tensors))

    def first(self, samples: int | Tensor) -> "Trajectories":
        """The first samples of every adapter; `samples` for all images or (n,)."""
        counts = torch.as_tensor(samples).expand_as(self.samples).minimum(self.samples)
        most = int(counts.max())
        behind = torch.arange(most) >= counts[:, None]  # (n, samples)

        def cut(values: Tensor) -> Tensor:
            mask = behind.view(len(counts), 1, most, *[1] * (values.ndim - 3))
            return values[:, :, :most].masked_fill(mask, _padding(values))

        return Trajectories(*[*map(cut, self._tensors[:-1]), counts])

    def then(self, later: "Trajectories") -> "Trajectories":
        """These samples and, behind them, later ones of the same images."""
        first, second = self._tensors[:-1], later._tensors[:-1]
        joined = (torch.cat(pair, dim=2) for pair in zip(first, second, strict=True))
        return Trajectories(*[*joined, self.samples + later.samples])

    def at(self, temperature: float) -> "Trajectories":
        """Divides the logits by `temperature`."""
        logits = self.log_probabilities + self.log_partition.unsqueeze(-1)
        return replace(
            self,
            log_probabilities=(self.log_probabilities / temperature).log_softmax(dim=-1),
            log_partition=(logits / temperature).logsumexp(dim=-1),
        )


def _padding(values: Tensor) -> float:
    return torch.nan if values.is_floating_point() else 0
