"""Response bodies of `/predict` and `/predict/batch`."""

from eulerlora_client.contract.fields import Nats, Probability, WireModel
from eulerlora_client.contract.sampling import Mode


class StandardError(WireModel):
    """Standard errors of a result with `samples=auto`, compared with unlimited samples.

    msp: of the highest probability. entropy: in nats. Both assume independent samples; the true
    errors are smaller where the model balances its samples.
    """

    msp: Nats
    entropy: Nats


class Prediction(WireModel):
    """The result for one image. Entropies are in nats.

    probabilities: by class name, in the order of the model's classes. msp: the highest of them.
    samples: per adapter, 1 in mode det; with `samples=auto` the number that was drawn. ood,
    ood_threshold: null if the checkpoint has no threshold for this mode and number of samples.
    standard_error: only with `samples=auto`. trajectory_probabilities: (trajectories, classes),
    only with `detail=trajectories`.
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
    warnings: tuple[str, ...]
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
