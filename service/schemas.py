"""Query parameters and response bodies, as the HTTP contract writes them."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from eulerlora.config import ClassName, Provenance, Threshold
from eulerlora.settings import AUTO, Auto, Mode
from service.settings import MAX_SAMPLES, ImageLimits


def _plain_digits(value: object) -> object:
    """Pydantic alone would also read "+4", " 4", "4.0" and "1_0"."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("wanted a whole number in plain digits")
    return value


def _auto_or_digits(value: object) -> object:
    try:
        return value if value == AUTO else _plain_digits(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error


WholeNumber = Annotated[int, BeforeValidator(_plain_digits)]
Count = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Samples = Annotated[
    Count | Auto, Field(union_mode="left_to_right"), BeforeValidator(_auto_or_digits)
]
Probability = Annotated[float, Field(ge=0, le=1)]
Nats = Annotated[float, Field(ge=0)]


class StandardErrorBody(BaseModel):
    """How far an answer may be from that of all samples that could be drawn, as one standard error.

    Of the highest probability, and of the entropy in nats. They are those of independent samples;
    where the model balances its samples against one another, the true ones are smaller.
    """

    msp: Nats
    entropy: Nats


class TriageQuery(BaseModel):
    """The parameters of /triage; any other is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Annotated[Mode, Field(description="One pass per adapter, or sampled ones.")] = "det"
    samples: Annotated[
        Samples | None,
        Field(
            description="Samples per adapter; stoch only, default 4. auto: as many as the image "
            "takes until its label, its OOD flag and its entropy are settled, 16 at most."
        ),
    ] = None
    seed: Annotated[
        WholeNumber | None,
        Field(ge=0, lt=2**32, description="Of the draws; derived from the image if left out."),
    ] = None
    model: Annotated[str | None, Field(description="A served model; the first if left out.")] = None


class PredictQuery(TriageQuery):
    """The parameters of /predict; any other is an error."""

    detail: Annotated[
        Literal["trajectories"] | None, Field(description="Adds trajectory_probabilities.")
    ] = None


class PredictionBody(BaseModel):
    """The answer for one image. Entropies in nats; `samples` is 1 in mode det.

    trajectory_probabilities: trajectories x classes in the order of the class names, only with
    `detail=trajectories`. ood and ood_threshold are null where the checkpoint has no threshold
    for this mode and number of samples. standard_error is there with `samples=auto`, whose
    `samples` are those that it took.
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
    warnings: list[str]
    standard_error: StandardErrorBody | None = None
    trajectory_probabilities: list[list[Probability]] | None = None

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """The most probable class of each trajectory; () without trajectory_probabilities."""
        names = tuple(self.probabilities)
        rows = self.trajectory_probabilities or []
        return tuple(names[row.index(max(row))] for row in rows)


class ProblemBody(BaseModel):
    """An RFC 9457 problem document with a stable code and the request's id."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str


class PredictionsBody(BaseModel):
    """The answers for many images, in their order."""

    results: list[PredictionBody | ProblemBody]


class ModelSummary(BaseModel):
    """One served model."""

    name: str
    revision: str
    classes: list[str]
    default: bool


class ModelList(BaseModel):
    """All served models."""

    models: list[ModelSummary]


class ModelDetails(BaseModel):
    """What a client can know of a model before it asks."""

    name: str
    revision: str
    classes: list[ClassName]
    adapters: int
    input_size: int
    image_limits: ImageLimits
    max_body_bytes: int
    max_samples: int
    thresholds: list[Threshold]
    provenance: Provenance


class Status(BaseModel):
    """What a probe answers."""

    status: str
