"""`[unfamiliar]` of a triage policy, fitted to target lesions: which images are never urgent.

Images of no lesion get even probabilities, which can reach the urgent threshold. `far` is a feature
distance that almost no target lesion reaches; it is known only from lesions of other cameras and
clinics than those of the training as well. A lesion counts by any of its images, since each may be
sent alone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np

from eulerlora.model import EulerLoRA
from eulerlora_clinic.fitting.policy import PolicyInputs, score_images, share_threshold
from eulerlora_clinic.policy.policy import FarEvidence, TargetRules, UnfamiliarRules
from eulerlora_contract.answers import Reason
from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import Options
from training.data.images import OUTSIDE, LabelledImage
from training.data.splits import split_off
from training.evaluation.intervals import Bools, Floats

_Part = Literal["fit", "measured"]

_FAR_SHARE = 0.005
"""Of the target lesions, that may be far, and that may lose their urgency by `ood`."""


@dataclass(frozen=True)
class FarLesions:
    """The m target lesions of a part of a data set.

    Attributes:
        data: Name of the data set.
        part: What they are for.
        unit: What is counted.
        distance: (m,) feature distance of the farthest image.
        loses: (m,) True with an image at or above the urgent threshold that is unfamiliar and out
            of distribution by its MSP.
    """

    data: str
    part: _Part
    unit: Unit
    distance: Floats
    loses: Bools

    @classmethod
    def of(cls, data: str, part: _Part, images: PolicyInputs, urgent: float) -> "FarLesions":
        """Those among images; `urgent` is the threshold of the score.

        Raises:
            DataError: Without a target lesion or feature statistics.
        """
        target, flags = images.target | images.outside, images.flags
        if not target.any():
            raise DataError(f"{data}: expected lesions of the target classes, got none")
        if images.distance is None:
            raise DataError("expected a checkpoint with feature statistics, got one without")
        units = images.units.of_images(target)
        loses = (images.scores >= urgent) & flags[Reason.UNFAMILIAR]
        loses &= flags[Reason.OUT_OF_DISTRIBUTION]
        return cls(
            data=data,
            part=part,
            unit=units.unit,
            distance=units.combine(images.distance[target], np.maximum),
            loses=units.combine(loses[target], np.logical_or),
        )

    def evidence(self, rules: UnfamiliarRules) -> FarEvidence:
        return FarEvidence(
            data=self.data,
            part=self.part,
            unit=self.unit,
            lesions=len(self.distance),
            far=int((self.distance >= rules.far).sum()),
            ood=int(self.loses.sum()),
        )


@dataclass(frozen=True)
class HalvedArchive:
    """The pictures of target lesions of an archive, halved without a common group.

    Attributes:
        data: Name of the archive.
        parts: The pictures to fit to and to measure on.
    """

    data: str
    parts: Mapping[_Part, Sequence[LabelledImage]]

    @classmethod
    def of(
        cls, data: str, images: Sequence[LabelledImage], labels: Collection[int]
    ) -> "HalvedArchive":
        """Those among all pictures of an archive with one of these labels, or OUTSIDE.

        Raises:
            DataError: For too few of them.
        """
        target = [image for image in images if image.label in {OUTSIDE, *labels}]
        fitted, measured = split_off(sorted(target, key=attrgetter("cluster_name")), 0.5)
        return cls(data, {"fit": fitted, "measured": measured})

    def lesions(
        self, model: EulerLoRA, options: Options, target: TargetRules
    ) -> Iterator[FarLesions]:
        """The lesions of both halves, as a model sees them."""
        for part, images in self.parts.items():
            label = f"{self.data}, {part}, {model.precision}"
            scored = score_images(model, images, options, target, label)
            yield FarLesions.of(self.data, part, scored, target.urgent)


def fit_far(scored: Sequence[Sequence[FarLesions]]) -> UnfamiliarRules:
    """The rules that almost no lesion of the parts to fit to falls under.

    `far` is the lowest distance that at most 0.5% of the lesions reach, in every precision, and
    `ood` is true if at most 0.5% of them lose their urgency by it, in every precision.

    Args:
        scored: The same lesions, in one or several precisions.
    """
    fitted = [[part for part in parts if part.part == "fit"] for parts in scored]
    distances = [np.concatenate([part.distance for part in parts]) for parts in fitted]
    losses = [np.concatenate([part.loses for part in parts]) for parts in fitted]
    return UnfamiliarRules(
        far=max(share_threshold(distance, _FAR_SHARE) for distance in distances),
        ood=all(loses.mean() <= _FAR_SHARE for loses in losses),
    )


def relaxed(rules: UnfamiliarRules, scored: Sequence[Sequence[FarLesions]]) -> UnfamiliarRules:
    """The rules, fitted to lesions of several cameras by the same network, that concern almost none
    of further lesions either.
    """
    of_further = fit_far(scored)
    return UnfamiliarRules(far=max(rules.far, of_further.far), ood=rules.ood and of_further.ood)
