"""The performance of fitted thresholds on images that had no part in their fit."""

from dataclasses import dataclass

from eulerlora.errors import DataError
from training.metrics.classification import auroc, sensitivity_at
from training.metrics.intervals import (
    Bools,
    Estimates,
    Floats,
    Weights,
    bootstrap,
    clopper_pearson,
    cluster_indices,
)
from training.policy.fit import PolicyFit
from training.policy.scores import ScoredImages
from training.policy.threshold import Names, lesions_with_all

SPECIFICITY = 0.9
"""Share of images without melanoma below the threshold at which its sensitivity is stated."""


@dataclass(frozen=True)
class MalignantCounts:
    """Malignant lesions by what happens to their images.

    urgent: all images are urgent. unfamiliar: all are urgent or unfamiliar, and at least one is
    unfamiliar, so that a person looks at it. The other lesions are missed. reached: lesions with
    all malignant probabilities at or above the urgent threshold, familiar or not.
    """

    lesions: int
    urgent: int
    unfamiliar: int
    reached: int

    @property
    def missed(self) -> int:
        return self.lesions - self.urgent - self.unfamiliar

    @property
    def sensitivity(self) -> float:
        """Share of the lesions that are urgent or unfamiliar."""
        return (self.urgent + self.unfamiliar) / self.lesions

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided exact 95% interval of the sensitivity (Clopper and Pearson)."""
        return clopper_pearson(self.urgent + self.unfamiliar, self.lesions)


@dataclass(frozen=True)
class OtherCounts:
    """Lesions that are not malignant, by what happens to their images.

    urgent: at least one image is urgent. unfamiliar: none is urgent, at least one is unfamiliar.
    The other lesions are spared. reached: lesions with a malignant probability at or above the
    urgent threshold, familiar or not.
    """

    lesions: int
    urgent: int
    unfamiliar: int
    reached: int

    @property
    def spared(self) -> int:
        return self.lesions - self.urgent - self.unfamiliar

    @property
    def specificity(self) -> float:
        """Share of the lesions that are spared."""
        return self.spared / self.lesions

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided exact 95% interval of the specificity (Clopper and Pearson)."""
        return clopper_pearson(self.spared, self.lesions)


@dataclass(frozen=True)
class PolicyMeasurement:
    """The dispositions of n images, and how a model orders them; image quality is not considered.

    images, lesions: all of them. malignant: lesions of the policy's malignant classes. outside:
    malignant lesions of none of the model's classes; None without such. others: the other lesions.
    specificity: share of the images of others (other_images) that are neither urgent nor
    unfamiliar. urgent, unfamiliar, refer, routine: shares of all images. ranking: by `ranking`.
    """

    images: int
    lesions: int
    melanoma: MalignantCounts
    malignant: MalignantCounts
    outside: MalignantCounts | None
    others: OtherCounts
    specificity: float
    other_images: int
    urgent: float
    unfamiliar: float
    refer: float
    routine: float
    ranking: Estimates

    @property
    def referral_rate(self) -> float:
        """Share of all images that are urgent, unfamiliar or refer."""
        return self.urgent + self.unfamiliar + self.refer


@dataclass(frozen=True)
class _Flags:
    """What happens to n images. reached: at or above the urgent threshold."""

    reached: Bools
    unfamiliar: Bools
    lesions: Names

    @property
    def urgent(self) -> Bools:
        return self.reached & ~self.unfamiliar

    @property
    def seen(self) -> Bools:
        """True for an image that is urgent or unfamiliar."""
        return self.reached | self.unfamiliar

    def malignant(self, chosen: Bools) -> MalignantCounts:
        """Returns the counts of the chosen images. chosen: (n,)."""
        urgent, seen, reached = (
            lesions_with_all(flags[chosen], self.lesions[chosen])
            for flags in (self.urgent, self.seen, self.reached)
        )
        return MalignantCounts(
            lesions=len(urgent),
            urgent=int(urgent.sum()),
            unfamiliar=int((seen & ~urgent).sum()),
            reached=int(reached.sum()),
        )

    def others(self, chosen: Bools) -> OtherCounts:
        """Returns the counts of the chosen images. chosen: (n,)."""
        urgent, seen, reached = (
            ~lesions_with_all(~flags[chosen], self.lesions[chosen])
            for flags in (self.urgent, self.seen, self.reached)
        )
        return OtherCounts(
            lesions=len(urgent),
            urgent=int(urgent.sum()),
            unfamiliar=int((seen & ~urgent).sum()),
            reached=int(reached.sum()),
        )


def measure_policy(images: ScoredImages, fit: PolicyFit) -> PolicyMeasurement:
    """Returns the performance of fitted thresholds on images.

    Raises DataError if no image shows melanoma, none shows a malignant class, or all do.
    """
    others = ~(images.malignant | images.outside)
    if not (images.melanoma.any() and images.malignant.any() and others.any()):
        raise DataError("expected images with melanoma and images outside the malignant classes")
    flags = _Flags(images.scores >= fit.urgent, images.unfamiliar, images.lesions)
    refer = ~flags.seen & (images.doubtful | (images.entropy >= fit.entropy_nats))
    return PolicyMeasurement(
        images=len(images.scores),
        lesions=len(set(images.lesions.tolist())),
        melanoma=flags.malignant(images.melanoma),
        malignant=flags.malignant(images.malignant),
        outside=flags.malignant(images.outside) if images.outside.any() else None,
        others=flags.others(others),
        specificity=float((~flags.seen[others]).mean()),
        other_images=int(others.sum()),
        urgent=float(flags.urgent.mean()),
        unfamiliar=float(images.unfamiliar.mean()),
        refer=float(refer.mean()),
        routine=float((~flags.seen & ~refer).mean()),
        ranking=ranking(images),
    )


def ranking(images: ScoredImages) -> Estimates:
    """Returns how a model orders images, whatever the thresholds, with intervals over lesions.

    melanoma_auroc: AUROC of the probability of melanoma, melanoma against all other classes.
    melanoma_sensitivity: share of its images that this probability finds at `SPECIFICITY`.
    malignant_auroc: AUROC of the summed probability of the malignant classes against the others.
    Malignant lesions of none of the model's classes are left out.
    """
    kept = ~images.outside
    melanoma, melanoma_scores = images.melanoma[kept], images.melanoma_scores[kept]
    malignant, scores = images.malignant[kept], images.scores[kept]

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {
            "melanoma_auroc": auroc(melanoma_scores, melanoma, weights),
            "melanoma_sensitivity": sensitivity_at(SPECIFICITY, melanoma_scores, melanoma, weights),
            "malignant_auroc": auroc(scores, malignant, weights),
        }

    return bootstrap(metrics, cluster_indices(images.lesions[kept].tolist()))
