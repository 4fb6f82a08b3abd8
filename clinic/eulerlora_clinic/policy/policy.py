"""The triage policy: the suggested next step for an image, with reasons.

The rules are those of `_RULES`, in their order; the first one that applies decides. A value equal
to its threshold counts as beyond it. A decision lists all reasons that apply. `dispositions` is the
only implementation: of one image, of many (`eulerlora policy fit`), and with unknown reasons
(`samples=auto`).

The summed probability of the target classes has two thresholds. Below `routine`, the target is no
reason to look at an image earlier: few of its lesions are there. From `urgent` on an image is
urgent: a stated share of the lesions there are of the target. An image between them is referred. An
unfamiliar image from `urgent` on is urgent too, because the score orders such images as well
(docs/results/default-model.md), unless it is far from everything that the model knows.

A policy is a TOML file; the classes below from `QualityRules` to `Policy` are its schema.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.resources import files
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from eulerlora_contract.answers import Disposition, ImageQuality, Prediction, Reason
from eulerlora_contract.checkpoints import TargetClasses, Unit
from eulerlora_contract.errors import PolicyError, SettingsError
from eulerlora_contract.sampling import (
    DEFAULT_SAMPLES,
    Auto,
    Mode,
    Options,
    Precision,
    applying,
)
from eulerlora_contract.settings import (
    Count,
    NonEmpty,
    NotNegative,
    Positive,
    PositiveInt,
    Probability,
    Settings,
    first_error,
    optional,
    toml_tables,
    validated,
)

POOR_QUALITY = (Reason.TOO_SMALL, Reason.TOO_DARK, Reason.TOO_BRIGHT, Reason.BLURRED)
_RULES: Sequence[tuple[Disposition, tuple[Reason, ...]]] = (
    (Disposition.UNFAMILIAR, (Reason.FAR,)),
    (Disposition.URGENT, (Reason.TARGET_CLASSES,)),
    (Disposition.UNFAMILIAR, (Reason.UNFAMILIAR,)),
    (Disposition.RETAKE, POOR_QUALITY),
    (Disposition.REFER, (
        Reason.TARGET_POSSIBLE, Reason.OUT_OF_DISTRIBUTION, Reason.OOD_UNKNOWN,
        Reason.HIGH_ENTROPY, Reason.TRAJECTORIES_DISAGREE, Reason.TRAJECTORIES_UNKNOWN,
    )),
)  # fmt: skip
"""The first rule with a reason that applies decides; without any, an image is routine."""

_Flags = Any
"""A bool, or an array with one for each image; NaN in place of one that is unknown."""


def dispositions(reasons: Mapping[Reason, _Flags]) -> dict[Disposition, _Flags]:
    """For every disposition, whether it is possible; one is if all reasons are known.

    Args:
        reasons: True if a reason applies, NaN if that is unknown. A reason that is missing does
            not apply.
    """
    undecided: _Flags = True  # no earlier rule certainly applies
    possible: dict[Disposition, _Flags] = dict.fromkeys(Disposition, False)
    for disposition, causes in _RULES:
        states = [reasons.get(cause, False) for cause in causes]
        may_apply = reduce(or_, (state != 0 for state in states))
        applies = reduce(or_, (state == 1 for state in states))
        possible[disposition] |= undecided & may_apply
        undecided &= applies ^ True  # `not`, also of an array
    possible[Disposition.ROUTINE] = undecided
    return possible


class Summary(Protocol):
    """What a policy decides on, of n images: each value is (n,), or that of one image.

    `eulerlora.answer.Predictions` is one, and `AnswerSummary` that of an answer in JSON.
    """

    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def entropy(self) -> Any: ...
    @property
    def ood(self) -> _Flags | None: ...
    @property
    def unfamiliar(self) -> _Flags | None: ...
    @property
    def feature_distance(self) -> Any | None: ...
    @property
    def agreement(self) -> Any | None:
        """Negative if a trajectory has another label than their mean; None if that is unknown."""

    def probability(self, classes: Sequence[str]) -> Any:
        """The summed probability of these classes."""


@dataclass(frozen=True)
class AnswerSummary:
    """The summary of an image from the answer of a service."""

    prediction: Prediction

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.prediction.probabilities)

    @property
    def entropy(self) -> float:
        return self.prediction.entropy

    @property
    def ood(self) -> bool | None:
        return self.prediction.ood

    @property
    def unfamiliar(self) -> bool | None:
        return self.prediction.unfamiliar

    @property
    def feature_distance(self) -> float | None:
        scores = self.prediction.ood_scores
        score = None if scores is None else scores.feature_distance
        return None if score is None else score.value

    @property
    def agreement(self) -> float | None:
        """Unknown for several trajectories that the answer was not asked for."""
        labels = self.prediction.trajectory_labels
        if not labels and self.prediction.trajectories > 1:
            return None
        return 1.0 if set(labels) <= {self.prediction.label} else -1.0

    def probability(self, classes: Sequence[str]) -> float:
        return math.fsum(self.prediction.probabilities[name] for name in classes)


def summary_reasons(summary: Summary) -> dict[Reason, _Flags]:
    """The reasons that rest on no threshold of a policy."""
    agreement = summary.agreement
    return {
        Reason.UNFAMILIAR: False if summary.unfamiliar is None else summary.unfamiliar,
        Reason.OUT_OF_DISTRIBUTION: False if summary.ood is None else summary.ood,
        Reason.OOD_UNKNOWN: summary.ood is None,
        Reason.TRAJECTORIES_DISAGREE: agreement is not None and agreement < 0,
        Reason.TRAJECTORIES_UNKNOWN: agreement is None,
    }


class _RoundComparisons(Protocol):
    """What a round of `samples=auto` says about n images (`eulerlora.sampling.adaptive`).

    Every comparison is (n,): 1 if it holds, 0 if not, and NaN if a later round may change that.
    """

    @property
    def ood(self) -> _Flags | None: ...
    @property
    def unfamiliar(self) -> _Flags | None: ...
    def probability(self, classes: Sequence[int], threshold: float) -> _Flags: ...
    def entropy(self, threshold: float) -> _Flags: ...
    def feature_distance(self, threshold: float) -> _Flags: ...
    def disagreement(self) -> _Flags: ...


class QualityRules(Settings):
    """Thresholds for retaking an image; a value equal to its threshold counts as beyond it.

    Attributes:
        too_small_px: Shorter side in pixels, at most.
        too_dark: Mean luma, 0 to 1.
        too_bright: Mean luma, 0 to 1.
        too_dark_share: Share of clipped pixels.
        too_bright_share: Share of clipped pixels.
        blurred: Variance of the Laplacian, at most (`eulerlora_contract.quality`).
    """

    too_small_px: Count
    too_dark: Probability
    too_bright: Probability
    too_dark_share: Probability
    too_bright_share: Probability
    blurred: NotNegative

    @model_validator(mode="after")
    def _dark_below_bright(self) -> Self:
        if self.too_dark >= self.too_bright:
            raise ValueError(
                f"expected too_dark below too_bright={self.too_bright}, got {self.too_dark}"
            )
        return self


RuleName = Literal["none missed in calibration", "sensitivity = 0.95"]
"""A rule by which `eulerlora policy fit` sets `target.routine`."""


class TargetRules(TargetClasses):
    """Thresholds of the summed probability of `classes`; a value equal to its threshold reaches it.

    Attributes:
        rule: By which `routine` was fitted; None for none of a name.
        routine: From here on, below `urgent`, an image is referred.
        urgent: From here on, an image is urgent.
    """

    rule: RuleName | None = optional(None)
    routine: Annotated[float, Field(gt=0, le=1)]
    urgent: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _routine_up_to_urgent(self) -> Self:
        if self.routine > self.urgent:
            raise ValueError(
                f"expected routine of at most urgent={self.urgent}, got {self.routine}"
            )
        return self


class UncertaintyRules(Settings):
    """When an image is referred for its uncertainty.

    Attributes:
        entropy_nats: Predictive entropy, at least.
    """

    entropy_nats: Positive


class UnfamiliarRules(Settings):
    """When an unfamiliar image is never urgent: it is `far`.

    Attributes:
        far: Feature distance, at least.
        ood: Whether the flag of the MSP makes it far too.
    """

    far: Positive
    ood: bool

    def is_far(self, unfamiliar: _Flags, beyond: _Flags, ood: _Flags) -> _Flags:
        """1 if an image is far, else 0; NaN if an argument is unknown, `ood` only if it counts.

        `beyond`: whether the feature distance reaches `far`.
        """
        near = (1 - beyond) * (1 - ood) if self.ood else 1 - beyond
        return unfamiliar * (1 - near)


class ThresholdEvidence(Settings):
    """What the lesions of a fit show about one threshold of the target probability.

    Attributes:
        lesions: That count, or other units (`FitEvidence.unit`): for `routine` those of the
            critical classes, for `urgent` all that have an image at or above it.
        independent: Number of their groups, such as patients, which are independent.
        hits: For `routine` those with an image at or above it, for `urgent` those of the target.
        wanted: Required share of hits among new lesions; for `routine` that of its rule.
        lower_bound: One-sided bound of this share; exact if each lesion is a group.
        established: Whether the share is at least `wanted`, with the confidence of the evidence. A
            threshold that is not established is the highest without a miss (`routine`), or that of
            the policy before the fit (`urgent`).
    """

    lesions: Count
    independent: Count
    hits: Count
    wanted: Probability
    lower_bound: Probability
    established: bool


class FitEvidence(Settings):
    """The images on which `eulerlora policy fit` set the thresholds.

    Attributes:
        unit: What is counted in place of lesions, if the images have none that are known.
        images: All images.
        in_training: Those of them that the model was trained on; they establish nothing.
        folds: Models that the thresholds were fitted to, each to images that it was not trained on;
            they differ from the model in these images only. 0 for the model itself.
        uncertain: Share of the images with an entropy of at least `uncertainty.entropy_nats`.
        rule: By which `target.routine` was fitted; None for none of a name.
        routine: About `target.routine`.
        urgent: About `target.urgent`.
    """

    data: NonEmpty
    unit: Unit
    images: PositiveInt
    in_training: Count = 0
    folds: Count = optional(0)
    uncertain: Probability
    rule: RuleName | None = optional(None)
    routine: ThresholdEvidence
    urgent: ThresholdEvidence


class LesionCounts(Settings):
    """Lesions by what happens to the most urgent of their images, which decides.

    Of the reasons to refer an image, only the target probability counts. They are other units where
    no lesions are known (`MeasuredEvidence.unit`).

    Attributes:
        refer: Neither urgent nor unfamiliar, but referred by the target probability.
        reached: Those with an image at the routine threshold, whether or not one is unfamiliar.
    """

    lesions: PositiveInt
    urgent: Count
    unfamiliar: Count
    refer: Count
    reached: Count

    @model_validator(mode="after")
    def _parts_within_all(self) -> Self:
        if max(self.lesions - self.neither, self.reached) > self.lesions:
            raise ValueError(f"expected counts of at most lesions={self.lesions}, got more")
        return self

    @property
    def neither(self) -> int:
        """Lesions that are not urgent, unfamiliar, or referred by the target probability."""
        return self.lesions - self.urgent - self.unfamiliar - self.refer


class TargetEvidence(LesionCounts):
    """Lesions of target classes.

    Attributes:
        sensitivity: Share of the lesions that are not `neither`, with its two-sided interval from
            sensitivity_low to sensitivity_high, which is exact if each lesion is a group.
    """

    sensitivity: Probability
    sensitivity_low: Probability
    sensitivity_high: Probability


class OutsideEvidence(TargetEvidence):
    """Target lesions of none of the model's classes.

    Attributes:
        labels: Their labels in the data.
    """

    labels: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]


class OtherEvidence(LesionCounts):
    """Lesions that are not of the target.

    Attributes:
        specificity: Share of the lesions that are `neither`, with its interval, as in
            `TargetEvidence`.
    """

    specificity: Probability
    specificity_low: Probability
    specificity_high: Probability


class IntervalEvidence(Settings):
    """A share of lesions or an AUROC, with its interval.

    Attributes:
        lesions: That it rests on.
        low: None if there are too few lesions for an interval.
        high: Likewise.
    """

    lesions: PositiveInt
    value: Probability
    low: Probability | None = None
    high: Probability | None = None


class GroupEvidence(Settings):
    """The performance on the lesions of one group, such as those with a diagnosis by histology.

    Attributes:
        attribute: Such as "diagnosed by" or "skin type".
        value: Of the attribute.
        sensitivity: Share of the group's target lesions that are not missed.
        specificity: Share of its other lesions that are spared.
        auroc: Of the target probability, of the group's target lesions against its other ones. Of
            those of all groups, in a group of "diagnosed by" without any: a diagnosis by follow-up
            is never one of the target.
    """

    attribute: NonEmpty
    value: NonEmpty
    sensitivity: IntervalEvidence | None = None
    specificity: IntervalEvidence | None = None
    auroc: IntervalEvidence | None = None


class UrgentEvidence(Settings):
    """Lesions with an urgent image.

    Attributes:
        target: Those of the target, with or without a class of the model.
        predictive_value: target / lesions, with its interval, as in `TargetEvidence`.
    """

    lesions: PositiveInt
    target: Count
    predictive_value: Probability
    predictive_value_low: Probability
    predictive_value_high: Probability


class MeasuredEvidence(Settings):
    """The performance of the thresholds on other images; image quality is not considered.

    Attributes:
        unit: What is counted in place of lesions, if the images have none that are known.
        images: All of them.
        lesions: All of them.
        referral_rate: Share of all images that are urgent, unfamiliar or referred.
        critical: Lesions of the policy's critical classes.
        target: Lesions of its target classes.
        outside: Target lesions of none of the model's classes, if there are any.
        urgent: Lesions with an urgent image, if there are any.
        groups: By how the diagnosis is known, and by other attributes of the data.
    """

    data: NonEmpty
    unit: Unit
    images: PositiveInt
    lesions: PositiveInt
    referral_rate: Probability
    critical: TargetEvidence
    target: TargetEvidence
    outside: OutsideEvidence | None = None
    others: OtherEvidence
    groups: tuple[GroupEvidence, ...] = ()
    urgent: UrgentEvidence | None = None


class FarEvidence(Settings):
    """The target lesions of a data set that `[unfamiliar]` concerns, by any of their images.

    Attributes:
        part: Whether `[unfamiliar]` was fitted to them or measured on them.
        unit: What is counted in place of lesions, if the images have none that are known.
        far: Lesions with a feature distance of at least `unfamiliar.far`.
        ood: Lesions with an image at or above the urgent threshold that is unfamiliar and out of
            distribution by its MSP: `unfamiliar.ood` takes its urgency, or would take it.
    """

    data: NonEmpty
    part: Literal["fit", "measured"]
    unit: Unit
    lesions: PositiveInt
    far: Count
    ood: Count


class Evidence(Settings):
    """What is known about the thresholds for one model and options, by `eulerlora policy fit`.

    Attributes:
        model: That the thresholds apply to, by name.
        revision: Of the model.
        options: Of the predictions of the fit and of all measurements. With samples "auto", the
            thresholds were fitted to the number that its rounds are compared with, and measured on
            its answers.
        confidence: Of all bounds and intervals.
        measured: One for each data set besides that of the fit.
        far: About `[unfamiliar]`, one for each part of a data set.
    """

    model: NonEmpty
    revision: NonEmpty
    confidence: Probability
    options: Options
    fit: FitEvidence
    measured: tuple[MeasuredEvidence, ...] = ()
    far: tuple[FarEvidence, ...] = optional(())


@dataclass(frozen=True)
class Decision:
    """The decision of a policy on one image.

    Attributes:
        reasons: Empty if and only if it is routine.
    """

    disposition: Disposition
    reasons: tuple[Reason, ...]
    policy_version: int
    policy_hash: str


class Policy(Settings):
    """The content of a policy file.

    Attributes:
        version: Raised with every change.
        unfamiliar: None if an unfamiliar image can always be urgent.
        evidence: One for each precision, or other options, in which the service may answer; the
            options of the first one are the defaults of requests.
    """

    format_version: Literal[2]
    version: PositiveInt
    quality: QualityRules
    target: TargetRules
    uncertainty: UncertaintyRules
    unfamiliar: UnfamiliarRules | None = optional(None)
    evidence: tuple[Evidence, ...] = ()

    def __hash__(self) -> int:
        """For caches; pydantic's includes all evidence, which takes a tenth of an answer."""
        return hash((self.version, self.target))

    @field_validator("evidence")
    @classmethod
    def _one_for_each(cls, value: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        keys = [(one.revision, one.options) for one in value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"expected one entry for {key[1]}, got {keys.count(key)}")
        return value

    @field_validator("format_version", mode="before")
    @classmethod
    def _two_thresholds(cls, value: object) -> object:
        if value == 1:
            raise ValueError(
                "expected 2, where target.routine is what target.urgent was in 1; got 1 (fit the "
                "policy again, or begin with `eulerlora policy show`)"
            )
        return value

    @property
    def hash(self) -> str:
        """SHA-256 of the content as canonical JSON; comments and layout do not count."""
        return _hash(self)

    def decide(self, summary: Summary, quality: ImageQuality) -> Decision:
        """The decision on an image.

        Raises:
            PolicyError: As `target_probability`.
        """
        # plain numbers: operations of torch take longer than the rest of the rules
        flags = {reason: bool(flag) for reason, flag in summary_reasons(summary).items()}
        flags |= dict.fromkeys(self.quality_reasons(quality), True)
        target, entropy = float(self.target_probability(summary)), float(summary.entropy)
        distance = None
        if self.unfamiliar is not None and summary.feature_distance is not None:
            distance = float(summary.feature_distance)
        reasons = self.reasons(target, entropy, flags, distance)
        (disposition,) = (name for name, possible in dispositions(reasons).items() if possible)
        applying = tuple(reason for reason in Reason if reasons.get(reason))
        return Decision(disposition, applying, self.version, self.hash)

    def reasons(
        self, target: Any, entropy: Any, flags: Mapping[Reason, _Flags], distance: Any | None
    ) -> dict[Reason, _Flags]:
        """Which reasons apply to an image, or to each of n images.

        Args:
            target: Summed probability of the target classes, a number or (n,).
            entropy: In nats, likewise.
            flags: By `summary_reasons`.
            distance: Feature distance, likewise; None if it is unknown.
        """
        far: dict[Reason, _Flags] = {}
        if self.unfamiliar is not None and distance is not None:
            beyond = distance >= self.unfamiliar.far
            known = (flags[Reason.UNFAMILIAR], beyond, flags[Reason.OUT_OF_DISTRIBUTION])
            far[Reason.FAR] = self.unfamiliar.is_far(*known)
        return {
            **flags,
            **far,
            Reason.TARGET_CLASSES: target >= self.target.urgent,
            Reason.TARGET_POSSIBLE: (target >= self.target.routine) & (target < self.target.urgent),
            Reason.HIGH_ENTROPY: entropy >= self.uncertainty.entropy_nats,
        }

    def settled(
        self, classes: Sequence[str], quality: Collection[Reason] = ()
    ) -> Callable[[_RoundComparisons], Any]:
        """Whether the dispositions of images can no longer change in a later round.

        Args:
            classes: Of the model.
            quality: The reasons that the quality of the images gives.

        Returns:
            For `eulerlora.sampling.adaptive.StoppingRule`: from the comparisons of n images to (n,)
            bools.
        """
        target = [classes.index(name) for name in self.target.classes]

        def settled(round_of: _RoundComparisons) -> Any:
            reasons: dict[Reason, _Flags] = {
                **dict.fromkeys(quality, True),
                Reason.OOD_UNKNOWN: round_of.ood is None,
                # A possible target, if it is not urgent.
                Reason.TARGET_CLASSES: round_of.probability(target, self.target.urgent),
                Reason.TARGET_POSSIBLE: round_of.probability(target, self.target.routine),
                Reason.HIGH_ENTROPY: round_of.entropy(self.uncertainty.entropy_nats),
                Reason.TRAJECTORIES_DISAGREE: round_of.disagreement(),
            }
            if round_of.ood is not None:
                reasons[Reason.OUT_OF_DISTRIBUTION] = round_of.ood
            if round_of.unfamiliar is not None:
                reasons[Reason.UNFAMILIAR] = round_of.unfamiliar
                if self.unfamiliar is not None:
                    beyond = round_of.feature_distance(self.unfamiliar.far)
                    ood = reasons.get(Reason.OUT_OF_DISTRIBUTION, 0)
                    far = self.unfamiliar.is_far(round_of.unfamiliar, beyond, ood)
                    reasons[Reason.FAR] = far
            return sum(dispositions(reasons).values()) == 1

        return settled

    def target_probability(self, summary: Summary) -> Any:
        """The summed probability of the target classes.

        Raises:
            PolicyError: If the model lacks one of them.
        """
        missing = [name for name in self.target.classes if name not in summary.classes]
        if missing:
            raise PolicyError(
                f"the policy's target requires the classes {', '.join(missing)}; the model has "
                f"{', '.join(summary.classes)}"
            )
        return summary.probability(self.target.classes)

    def evidence_for(self, revision: str, options: Options) -> Evidence | None:
        """What is known about the thresholds for the answers of a revision with these options.

        Without any for its precision, it is that of another one, which the caller must state.
        """
        of_revision = [one for one in self.evidence if one.revision == revision]
        return next(iter(applying(of_revision, options)), None)

    def evidence_in(self, precision: Precision | None = None) -> Evidence | None:
        """The first evidence in a precision, or else the first one; None without any."""
        same = [one for one in self.evidence if one.options.precision == precision]
        return next(iter([*same, *self.evidence]), None)

    def quality_reasons(self, quality: ImageQuality) -> Iterator[Reason]:
        """Yields the reasons to retake an image."""
        rules = self.quality
        if min(quality.width, quality.height) <= rules.too_small_px:
            yield Reason.TOO_SMALL
        if quality.brightness <= rules.too_dark or quality.dark_share >= rules.too_dark_share:
            yield Reason.TOO_DARK
        if quality.brightness >= rules.too_bright or quality.bright_share >= rules.too_bright_share:
            yield Reason.TOO_BRIGHT
        if quality.sharpness <= rules.blurred:
            yield Reason.BLURRED


@lru_cache(maxsize=4)  # every answer states it
def _hash(policy: Policy) -> str:
    content = json.dumps(
        policy.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()


def default_sampling(
    evidence: Sequence[Evidence], mode: Mode | None = None, samples: int | Auto | None = None
) -> tuple[Mode, int | Auto | None]:
    """The mode and samples of a triage request: given values, or those of the first evidence.

    Without evidence, the default is mode det, as for predictions.
    """
    fitted = evidence[0].options if evidence else None
    if mode is None:
        mode = "det" if fitted is None else fitted.mode
    if mode == "stoch" and samples is None:
        samples = DEFAULT_SAMPLES
        if fitted is not None and fitted.mode == mode:
            samples = fitted.samples
    return mode, samples


DEFAULT_FILE = "policy.toml"


def default_policy() -> Policy:
    """The packaged policy."""
    return parse_policy(default_policy_text(), DEFAULT_FILE)


def default_policy_text() -> str:
    """The text of the packaged policy file."""
    return files("eulerlora_clinic.policy").joinpath(DEFAULT_FILE).read_text(encoding="utf-8")


def read_policy(path: Path) -> Policy:
    """Reads a policy file.

    Raises:
        SettingsError: With the file and the key.
    """
    return parse_policy(read_policy_text(path), str(path))


def read_policy_text(path: Path) -> str:
    """The text of a policy file.

    Raises:
        SettingsError: With the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected TOML in UTF-8 ({error})") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error


def policy_of(content: Mapping[str, Any], name: str) -> Policy:
    """The policy that a service describes; ignores keys of later versions.

    Raises:
        SettingsError: With a message that begins with `name`.
    """
    try:
        return Policy.model_validate(content, extra="ignore")
    except ValidationError as error:
        raise SettingsError(f"{name}: {first_error(error)}") from error


def parse_policy(text: str, name: str) -> Policy:
    """The policy in a TOML text.

    Raises:
        SettingsError: For another text; it begins with `name`.
    """
    try:
        return validated(Policy, toml_tables(text))
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error
