"""Response bodies of `/predict` and `/predict/batch`."""

from enum import StrEnum

from eulerlora_client.contract.fields import Nats, Probability, WireModel
from eulerlora_client.contract.sampling import Mode


class StandardError(WireModel):
    """Standard errors of a result with `samples=auto`, compared with unlimited samples.

    msp: of the highest probability. entropy: in nats. The value plus and minus two errors is a 95%
    interval that accounts for the adaptive number of samples. With the embedded model
    it covers 97% of the answers with independent samples and 99% with balanced ones; of those that
    stop after two independent samples, 93% (docs/sampling.md).
    """

    msp: Nats
    entropy: Nats


class WarningCode(StrEnum):
    """The codes of the warnings that this version of the service gives."""

    CONVERTED_TO_RGB = "converted_to_rgb"
    DECLARED_TYPE_DIFFERS = "declared_type_differs"
    SAMPLES_REDUCED = "samples_reduced"
    NO_OOD_THRESHOLD = "no_ood_threshold"
    NO_PREDICTION_SET = "no_prediction_set"
    DISTRIBUTION_SHIFT = "distribution_shift"


class PredictionWarning(WireModel):
    """A stable code (`WarningCode`; later servers may have more) and its text for people."""

    code: str
    message: str


class OodScore(WireModel):
    """An out-of-distribution score of one image.

    threshold, flagged: null if the checkpoint has no threshold of this score for the mode and the
    number of samples. `msp` is flagged below its threshold, the other scores above theirs.
    """

    value: float
    threshold: float | None
    flagged: bool | None


class OodScores(WireModel):
    """The out-of-distribution scores of one image.

    msp: the highest probability. energy: minus the mean over trajectories of the log-sum-exp of
    their logits. feature_distance: Mahalanobis distance of the image's features to the nearest
    class of the training data; null if the checkpoint has no feature statistics.
    """

    msp: OodScore
    energy: OodScore
    feature_distance: OodScore | None


class PredictionSet(WireModel):
    """A set of classes that contains the true one with a stated probability.

    labels: class names in the order of the model's classes; may be empty. coverage: for each class,
    the least probability that the sets of all images of a new lesion of this class contain it, if
    the lesion comes from the distribution of the calibration data. unit: "lesion", or "image" if
    the calibration data do not state lesions. calibrated_on: the calibration data.
    """

    labels: tuple[str, ...]
    coverage: Probability
    unit: str
    calibrated_on: str


class Prediction(WireModel):
    """The result for one image. Entropies are in nats.

    probabilities: by class name, in the order of the model's classes. msp: the highest of them.
    samples: per adapter, 1 in mode det; with `samples=auto` the number that was drawn. ood,
    ood_threshold: null if the checkpoint has no threshold for this mode and number of samples.
    ood_scores: all out-of-distribution scores. unfamiliar: the flag of the feature distance; absent
    if the checkpoint has no feature statistics.
    prediction_set: only with `coverage`. standard_error: only with `samples=auto`.
    trajectory_probabilities: (trajectories, classes), only with `detail=trajectories`. A null has
    its reason in the warnings.
    """

    request_id: str
    model: str
    revision: str
    mode: Mode
    samples: int
    trajectories: int
    seed: int
    label: str
    probabilities: dict[str, Probability]
    entropy: Nats
    expected_entropy: Nats
    mutual_information: Nats
    msp: Probability
    ood: bool | None
    ood_threshold: float | None
    warnings: tuple[PredictionWarning, ...]
    ood_scores: OodScores | None = None
    unfamiliar: bool | None = None
    prediction_set: PredictionSet | None = None
    standard_error: StandardError | None = None
    trajectory_probabilities: tuple[tuple[Probability, ...], ...] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return tuple(self.probabilities)

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """The most probable class of each trajectory; () without trajectory_probabilities."""
        rows = self.trajectory_probabilities or ()
        return tuple(self.classes[row.index(max(row))] for row in rows)


class ProblemDocument(WireModel):
    """A problem document (RFC 9457) with a stable code and the request's id."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str


class PredictionBatch(WireModel):
    """The results for many images, in their order."""

    results: tuple[Prediction | ProblemDocument, ...]
