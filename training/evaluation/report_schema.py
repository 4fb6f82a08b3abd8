"""Report schema: the results of an evaluation, and their JSON file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import Options, Precision
from eulerlora_contract.settings import first_error
from training.data.images import OodGroup
from training.evaluation.intervals import Estimate, Estimates, Proportion

TEST = "test"
FLAG_METRICS: Mapping[ScoreName, str] = {"msp": "flagged", "feature_distance": "unfamiliar"}
"""Names of the flagged shares of groups, by score."""
JSON, CHART_FILE = "report.json", "reliability.png"
PREDICTIONS = "predictions.csv.gz"
REPORT = "report"
"""Folder of the report in that of a run."""


@dataclass(frozen=True)
class ClassMetrics:
    """Classification results of one class; None if there are no such images.

    Attributes:
        sensitivity: Share of the class's images with the class's label.
        specificity: Share of the other images with another label.
        predictive_value: Share of the images with the class's label that belong to the class.
        ranking: AUROC and AUPRC (average precision) of its probability against the other classes;
            empty without images of the class or of others.
    """

    sensitivity: Proportion | None
    specificity: Proportion | None
    predictive_value: Proportion | None
    ranking: Estimates = field(default_factory=dict)


@dataclass(frozen=True)
class GroupMetrics:
    """Results of a subgroup of the test images.

    Attributes:
        clusters: Number of groups of images, such as lesions or patients.
        target: Number of images of the target classes.
        metrics: Accuracy, MSP minus accuracy, AUROC and the flagged shares.
        sensitivity: Share of the target images with the label of a target class; None without such
            images or without target classes.
        specificity: Share of the other images with the label of another class; None likewise.
    """

    images: int
    clusters: int
    target: int
    metrics: Estimates
    sensitivity: Proportion | None
    specificity: Proportion | None


@dataclass(frozen=True)
class ClassCoverage:
    """The sets of labelled images of one class.

    Attributes:
        units: The share of lesions, or of other units, of which all images have the class in their
            set; its interval is exact if each is a group.
        mean_size: Classes per set.
    """

    units: Proportion
    mean_size: float


@dataclass(frozen=True)
class SetCoverage:
    """The coverage of prediction sets on labelled images.

    Attributes:
        coverage: The stated one.
        always_included: Classes that are in every set.
        classes: By the name of every class with images.
        mean_size: Mean number of classes in a set.
    """

    coverage: float
    always_included: tuple[str, ...]
    classes: Mapping[str, ClassCoverage]
    mean_size: float


@dataclass(frozen=True)
class ScoreMetrics:
    """Results of an OOD score: the test part against another set.

    Attributes:
        metrics: AUROC, AUPRC and FPR at 95% TPR.
        flagged: Share of the other set beyond the threshold; None without a threshold.
    """

    metrics: Estimates
    flagged: Proportion | None


@dataclass(frozen=True)
class OodMetrics:
    """Results for an out-of-distribution set.

    Attributes:
        scores: By OOD score.
        accuracy: None if not all images belong to a class.
    """

    scores: Mapping[ScoreName, ScoreMetrics]
    accuracy: Proportion | None


@dataclass(frozen=True)
class ModeReport:
    """Results of a checkpoint with one choice of options.

    Attributes:
        metrics: Of the test part.
        difference: Metrics less those of the report's first mode, for the same images; empty for
            the first mode.
        error_ranking: AUROC of wrong against right labels and AURC, by score of uncertainty.
        classes: By label.
        thresholds: The checkpoint's OOD thresholds for these options, by score.
        flagged: Share of the test part that is flagged, by score with a threshold.
        ood: By out-of-distribution set.
        groups: By attribute, then by value.
        prediction_sets: On the test part, for each calibrated coverage.
    """

    options: Options
    trajectories: int
    metrics: Estimates
    difference: Estimates
    error_ranking: Mapping[str, Estimates]
    classes: Mapping[str, ClassMetrics]
    thresholds: Mapping[ScoreName, float]
    flagged: Mapping[ScoreName, Proportion | None]
    ood: Mapping[str, OodMetrics]
    groups: Mapping[str, Mapping[str, GroupMetrics]]
    prediction_sets: Sequence[SetCoverage] = ()

    @property
    def title(self) -> str:
        """A column heading."""
        return self.options.title


@dataclass(frozen=True)
class Subset:
    """The number of images used, of how many available."""

    images: int
    of: int

    @property
    def limited(self) -> bool:
        return self.images < self.of


@dataclass(frozen=True)
class OodSetFacts:
    """An out-of-distribution set of a report.

    Attributes:
        group: As in `OodSet`.
        generated: As in `OodSet`.
        used: images.
        seen: As in `Report`.
        resembles: What training was shown that the set is or resembles; None if nothing is known
            (`training.evaluation.ood_sets`).
    """

    group: OodGroup
    generated: bool
    used: Subset
    seen: int | None
    resembles: str | None


@dataclass(frozen=True)
class ProbeComparison:
    """A trained model, in the report's first mode, and the linear probe that it started from.

    Attributes:
        accuracy: Of the probe.
        images: Number of images of the test part.
        groups: Number of groups of the test part.
        nll_difference: Model minus probe, with a paired interval.
        accuracy_difference: Model minus probe, with a paired interval.
    """

    accuracy: float
    images: int
    groups: int
    nll_difference: Estimate | None
    accuracy_difference: Estimate | None

    @property
    def verdict(self) -> Literal["better", "no difference shown", "worse", "not tested"]:
        """By the interval of the NLL, which measures probabilities and not only labels."""
        nll = self.nll_difference
        if nll is None or nll.low is None:
            return "not tested"
        if not nll.differs:
            return "no difference shown"
        return "better" if nll.value < 0 else "worse"


@dataclass(frozen=True)
class TrainedMethod:
    """How the evaluated model was trained.

    Attributes:
        title: Such as "LoRA, rank 20".
        sampled: False if all modes give the same answers.
        recipe_sha256: Digest of all settings but the seed; runs that share it differ in the seed.
        seed: None if it is not recorded.
        settings: Those of the training that the title leaves out, by key of the recipe; empty if
            they are not recorded.
    """

    title: str
    sampled: bool
    recipe_sha256: str
    seed: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Results of an evaluation and the data behind them.

    Attributes:
        method: That the model was trained with; that of each member, for an ensemble of runs.
        unit: What is counted where pictures are not.
        units: Of the test images.
        sampled: What a cluster is: resamples keep its images together.
        clusters: Of the test images; equal to images if no groups are known.
        seen: Test images that the training of the adapters or of the backbone was shown; None if it
            is not known.
        fitted: Test images that thresholds, temperatures or prediction sets were fitted to; None if
            it is not known.
        target: Classes whose sensitivity is reported together.
        ood_sets: By name.
        modes: At least one, all in the same precision.
        probe: Only from the training itself.
        notes: Remarks on the data, such as what is left out.
    """

    model: str
    method: TrainedMethod
    revision: str
    data: str
    images: int
    unit: Unit
    units: int
    sampled: Unit
    clusters: int
    seen: int | None
    fitted: int | None
    target: Sequence[str]
    ood_sets: Mapping[str, OodSetFacts]
    modes: Sequence[ModeReport]
    probe: ProbeComparison | None = None
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The model, its method and the data."""
        return f"{self.model} ({self.method.title}) on {self.data}"

    @property
    def precision(self) -> Precision:
        return self.modes[0].options.precision


_JSON = TypeAdapter(Report)


def report_json(report: Report) -> bytes:
    """The report as JSON, with null for undefined values."""
    return _JSON.dump_json(report, indent=2) + b"\n"


def read_report(folder: Path) -> Report:
    """Reads `report.json` in a folder.

    Raises:
        DataError: If it is missing or invalid.
    """
    path = folder / JSON
    try:
        return _JSON.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path}: expected a report as `eulerlora evaluate --out` writes it ({error.strerror})"
        ) from error
    except ValidationError as error:
        raise DataError(f"{path}: {first_error(error)}") from error
