"""The performance of a policy's thresholds on images that had no part in their fit."""

from dataclasses import dataclass

from eulerlora.errors import DataError
from training.metrics.intervals import clopper_pearson
from training.policy.fit import PolicyFit
from training.policy.scores import ScoredImages
from training.policy.threshold import lesions_with_all


@dataclass(frozen=True)
class MelanomaCounts:
    """Lesions of melanoma by what happens to their images.

    found: all images are urgent. unfamiliar: all are urgent or unfamiliar, and at least one is
    unfamiliar, so that a person looks at it. The other lesions are missed.
    """

    lesions: int
    found: int
    unfamiliar: int

    @property
    def missed(self) -> int:
        return self.lesions - self.found - self.unfamiliar

    @property
    def sensitivity(self) -> float:
        """Share of the lesions that are found or unfamiliar."""
        return (self.found + self.unfamiliar) / self.lesions

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided exact 95% interval of the sensitivity (Clopper and Pearson)."""
        return clopper_pearson(self.found + self.unfamiliar, self.lesions)


@dataclass(frozen=True)
class PolicyMeasurement:
    """The dispositions of n images; image quality is not considered.

    images, lesions: all of them. specificity: share of the images outside the malignant classes
    (other_images) that are neither urgent nor unfamiliar. urgent, unfamiliar, refer, routine:
    shares of all images.
    """

    images: int
    lesions: int
    melanoma: MelanomaCounts
    specificity: float
    other_images: int
    urgent: float
    unfamiliar: float
    refer: float
    routine: float

    @property
    def referral_rate(self) -> float:
        """Share of all images that are urgent, unfamiliar or refer."""
        return self.urgent + self.unfamiliar + self.refer


def measure_policy(images: ScoredImages, fit: PolicyFit) -> PolicyMeasurement:
    """Returns the performance of fitted thresholds on images.

    Raises DataError if no image shows melanoma or all images are malignant.
    """
    others = ~images.malignant
    if not images.melanoma.any() or not others.any():
        raise DataError("expected images with melanoma and images outside the malignant classes")
    urgent = ~images.unfamiliar & (images.scores >= fit.urgent)
    seen = urgent | images.unfamiliar
    refer = ~seen & (images.doubtful | (images.entropy >= fit.entropy_nats))
    melanoma_lesions = images.lesions[images.melanoma]
    found = lesions_with_all(urgent[images.melanoma], melanoma_lesions)
    found_or_unfamiliar = lesions_with_all(seen[images.melanoma], melanoma_lesions)
    return PolicyMeasurement(
        images=len(images.scores),
        lesions=len(set(images.lesions.tolist())),
        melanoma=MelanomaCounts(
            lesions=len(found),
            found=int(found.sum()),
            unfamiliar=int((found_or_unfamiliar & ~found).sum()),
        ),
        specificity=float((~seen[others]).mean()),
        other_images=int(others.sum()),
        urgent=float(urgent.mean()),
        unfamiliar=float(images.unfamiliar.mean()),
        refer=float(refer.mean()),
        routine=float((~seen & ~refer).mean()),
    )
