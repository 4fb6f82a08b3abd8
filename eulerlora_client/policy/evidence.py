"""The tables `[evidence]` of a policy file: what is known about its thresholds."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora_client.contract.fields import PositiveInt, Probability
from eulerlora_client.contract.sampling import DEFAULT_SAMPLES, Auto, Mode
from eulerlora_client.policy.rules import Name
from eulerlora_client.settings import Settings

Count = Annotated[int, Field(ge=0)]


class FitEvidence(Settings):
    """The images on which `eulerlora policy fit` set the thresholds.

    images: all images. lesions: those of class `target`; found: those with all images at or above
    `malignant.urgent`; lower_bound: one-sided exact bound of found / lesions; established: whether
    it is at least `wanted`. uncertain: share of the images with an entropy of at least
    `uncertainty.entropy_nats`.
    """

    data: Name
    images: PositiveInt
    lesions: PositiveInt
    found: Count
    lower_bound: Probability
    established: bool
    uncertain: Probability


class LesionCounts(Settings):
    """Lesions by what happens to their images. reached: those of them at the urgent threshold.

    `reached` ignores whether an image is unfamiliar: it is what the threshold alone does.
    """

    lesions: PositiveInt
    urgent: Count
    unfamiliar: Count
    reached: Count

    @model_validator(mode="after")
    def _parts_within_all(self) -> Self:
        if max(self.urgent + self.unfamiliar, self.reached) > self.lesions:
            raise ValueError(f"expected counts of at most lesions={self.lesions}, got more")
        return self

    @property
    def neither(self) -> int:
        """Lesions that are neither urgent nor unfamiliar."""
        return self.lesions - self.urgent - self.unfamiliar


class MalignantEvidence(LesionCounts):
    """Malignant lesions.

    urgent: all images are urgent; unfamiliar: all are urgent or unfamiliar, at least one of them
    unfamiliar; reached: all have a malignant probability of at least `malignant.urgent`.
    sensitivity: (urgent + unfamiliar) / lesions, with its two-sided exact interval from
    sensitivity_low to sensitivity_high.
    """

    sensitivity: Probability
    sensitivity_low: Probability
    sensitivity_high: Probability


class OutsideEvidence(MalignantEvidence):
    """Malignant lesions of none of the model's classes. labels: their labels in the data."""

    labels: Annotated[tuple[Name, ...], Field(min_length=1)]


class OtherEvidence(LesionCounts):
    """Lesions that are not malignant.

    urgent: at least one image is urgent; unfamiliar: none is urgent, at least one is unfamiliar;
    reached: at least one has a malignant probability of at least `malignant.urgent`. specificity:
    share of the lesions that are neither, with its two-sided exact interval from specificity_low
    to specificity_high.
    """

    specificity: Probability
    specificity_low: Probability
    specificity_high: Probability


class MeasuredEvidence(Settings):
    """The performance of the thresholds on other images; image quality is not considered.

    images, lesions: all of them. referral_rate: share of all images that are urgent, unfamiliar or
    referred. target: lesions of `Evidence.target`. malignant: lesions of the policy's malignant
    classes. other_malignant: malignant lesions of none of the model's classes, if there are any.
    """

    data: Name
    images: PositiveInt
    lesions: PositiveInt
    referral_rate: Probability
    target: MalignantEvidence
    malignant: MalignantEvidence
    other_malignant: OutsideEvidence | None = None
    others: OtherEvidence


class Evidence(Settings):
    """What is known about the thresholds, written by `eulerlora policy fit`.

    model, revision, mode, samples: what the thresholds apply to. precision: of the predictions of
    the fit and of all measurements. target: the class whose
    sensitivity is to be at least `wanted`. confidence: of all bounds and intervals. measured: one
    for each data set besides that of the fit.
    """

    model: Name
    revision: Name
    precision: Literal["float32", "bfloat16"]
    mode: Literal["det", "stoch"]
    samples: PositiveInt
    target: Name
    wanted: Probability
    confidence: Probability
    fit: FitEvidence
    measured: tuple[MeasuredEvidence, ...] = ()


@dataclass(frozen=True)
class Sampling:
    """The mode of a request, and its samples per adapter; None for modes without samples."""

    mode: Mode
    samples: int | Auto | None


def default_sampling(
    evidence: Evidence | None, mode: Mode | None = None, samples: int | Auto | None = None
) -> Sampling:
    """Returns the mode and samples of a triage request: given values, or those of the evidence.

    Without evidence, the default is mode det, as for predictions.
    """
    if mode is None:
        mode = "det" if evidence is None else evidence.mode
    if mode == "stoch" and samples is None:
        if evidence is not None and evidence.mode == mode:
            samples = evidence.samples
        else:
            samples = DEFAULT_SAMPLES
    return Sampling(mode, samples)
