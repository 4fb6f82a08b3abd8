"""What the service answers, as the client gives it; fields that it does not know are ignored."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from eulerlora.settings import Auto


class Answer(BaseModel):
    """Base of all answers: immutable, and open to fields of later servers."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class StandardError(Answer):
    """How far an answer may be from that of all samples there could be: one standard error.

    msp: of the largest probability. entropy: in nats. Where the model balances its samples, the
    true ones are smaller.
    """

    msp: float
    entropy: float


class Prediction(Answer):
    """The answer for one image. Entropies in nats.

    probabilities: by class name, in the order of the class names. msp: the largest of them.
    ood and ood_threshold are None where the model has no threshold for this mode and number of
    samples. trajectory_probabilities: trajectories x classes in the order of the class names, only
    where the detail was asked for. standard_error: only where the samples were "auto"; `samples`
    are then those that it took.
    """

    request_id: str
    model: str
    revision: str
    mode: str
    samples: int | None = None
    trajectories: int
    seed: int
    label: str
    probabilities: dict[str, float]
    entropy: float
    expected_entropy: float
    mutual_information: float
    msp: float
    ood: bool | None = None
    ood_threshold: float | None = None
    warnings: tuple[str, ...] = ()
    standard_error: StandardError | None = None
    trajectory_probabilities: tuple[tuple[float, ...], ...] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return tuple(self.probabilities)

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """What each trajectory would have answered; () where the detail was not asked for."""
        return tuple(
            self.classes[row.index(max(row))] for row in self.trajectory_probabilities or ()
        )


class ModelSummary(Answer):
    """One served model."""

    name: str
    revision: str
    classes: tuple[str, ...]
    default: bool


class ModelList(Answer):
    """All served models, the default first."""

    models: Annotated[tuple[ModelSummary, ...], Field(min_length=1)]


class ClassName(Answer):
    """A class, and what it stands for."""

    name: str
    description: str = ""


class ImageLimits(Answer):
    """Which images are read at all; sides in pixels, max_pixels of their product."""

    min_side: int
    max_side: int
    max_pixels: int


class Threshold(Answer):
    """The msp below which an image counts as out of distribution, for a mode and samples.

    kept: the share of the images it was set on that is above it; data says which those were.
    """

    mode: str
    samples: int | Auto
    msp: float
    kept: float
    images: int
    data: str


class ModelDetails(Answer):
    """What can be known of a model before it is asked."""

    name: str
    revision: str
    classes: tuple[ClassName, ...]
    adapters: int
    input_size: int
    image_limits: ImageLimits
    max_body_bytes: int
    max_samples: int
    thresholds: tuple[Threshold, ...] = ()
    provenance: dict[str, Any] = {}
