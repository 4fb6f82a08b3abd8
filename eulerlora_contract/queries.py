"""Query parameters of `/predict`, `/triage`, their batches and reports; bodies in JSON."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema

from eulerlora_contract.answers import WireModel
from eulerlora_contract.sampling import (
    AUTO,
    MAX_SAMPLES,
    MAX_SEED,
    SAMPLES_PATTERN,
    Auto,
    Mode,
    Views,
)


def _plain_digits(value: object) -> object:
    """Raises ValueError for forms that pydantic also accepts: "+4", " 4", "4.0" and "1_0"."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("expected a whole number in plain digits")
    return value


def _auto_or_digits(value: object) -> object:
    try:
        return value if value == AUTO else _plain_digits(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error


def _views(value: object) -> object:
    """The number of a digit: a literal of numbers also equals True and 1.0."""
    if isinstance(value, bool | float):
        raise ValueError("expected a whole number")
    digits = _plain_digits(value)
    return int(digits) if isinstance(digits, str) and len(digits) < 10 else digits


def _plain_decimal(value: object) -> object:
    """Raises ValueError for forms that pydantic also accepts: "9e-1", " 0.9", "inf" and "0_0.9"."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", value):
        raise ValueError("expected a number between 0 and 1 in plain digits")
    return value


_Seed = Annotated[int, Field(ge=0, le=MAX_SEED), BeforeValidator(_plain_digits)]
_Coverage = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_plain_decimal)]
_Samples = Annotated[
    Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | Auto,
    Field(union_mode="left_to_right"),
    BeforeValidator(_auto_or_digits),
    # A union of a number and a word in a query cannot be sent by clients of OpenAPI Generator.
    WithJsonSchema({"type": "string", "pattern": SAMPLES_PATTERN, "example": "4"}),
]
_ViewsParameter = Annotated[Views, BeforeValidator(_views)]

_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Decided = Literal["urgent", "unfamiliar", "refer", "retake", "routine", "undo"]
"""A disposition, or `UNDO`."""

MAX_BATCH_FILES = 32
MAX_BATCH_BYTES = 128 * 1024 * 1024
"""Images and bytes of a batch that a service accepts unless its settings say otherwise."""


class NoQuery(BaseModel):
    """No parameters, and the base of all parameters; any other parameter is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class TriageQuery(NoQuery):
    """Parameters of `/triage`."""

    mode: Mode | SkipJsonSchema[None] = None
    """det: one pass per adapter; stoch: sampled passes. Default: the mode that the policy's
    thresholds were set for (`GET /triage/policy`).
    """
    samples: _Samples | SkipJsonSchema[None] = None
    """Samples per adapter; only with stoch. Default: the number that the policy's thresholds were
    set for, or 4. auto: 1, 2 or 4, until the label, the flags and the disposition are settled;
    for a model with decision margins.
    """
    views: _ViewsParameter | SkipJsonSchema[None] = None
    """Flips and quarter turns of the image that its trajectories share between them; in det every
    adapter sees all of them. Default: those of the model in stoch, 1 in det. Nothing is calibrated
    for other numbers; not with samples=auto.
    """
    seed: _Seed | SkipJsonSchema[None] = None
    """Seed of the draws; derived from the image by default."""
    model: str | SkipJsonSchema[None] = None
    """Name of a served model; the first one by default."""
    coverage: _Coverage | SkipJsonSchema[None] = None
    """Adds prediction_set: the classes that remain possible at this coverage, such as 0.9. It is
    null, with a warning, if the checkpoint is not calibrated for it.
    """
    detail: Literal["trajectories"] | SkipJsonSchema[None] = None
    """Adds trajectory_probabilities."""


class TriageBatchQuery(TriageQuery):
    """Parameters of `/triage/batch`."""

    lesions: Annotated[str, Field(pattern=r"^[0-9]{1,6}(,[0-9]{1,6})*$")] | SkipJsonSchema[None] = (
        None
    )
    """A number for each image, in order, such as 1,1,2: images with the same number show the same
    lesion. Adds a disposition for each lesion. Numbers that say nothing about a patient.
    """


class EmbedQuery(NoQuery):
    """Parameters of `/embed`."""

    model: str | SkipJsonSchema[None] = None
    """Name of a served model; the first one by default."""


class PredictQuery(TriageQuery):
    """Parameters of `/predict` and `/predict/batch`."""

    mode: Mode = "det"
    """det: one pass per adapter; stoch: sampled passes."""
    samples: _Samples | SkipJsonSchema[None] = None
    """Samples per adapter; only with stoch, default 4. auto: 1, 2 or 4, until the label and the
    flags are settled; for a model with decision margins.
    """


class DecisionRequest(WireModel):
    """What a person decided about an answer of `/triage`: a decision, a diagnosis, or both."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    """The request id of the answer."""
    index: Annotated[int | None, Field(ge=0)] = None
    """The position of the image in its batch, from 0; only for an answer of `/triage/batch`."""
    decision: Decided | None = None
    """The disposition that the person chose: the suggested one accepts it. `undo` withdraws
    decision, reason and diagnosis.
    """
    reason: Annotated[_Words, Field(max_length=500)] | None = None
    """Why; required if the decision is not the suggested disposition. Without patient data."""
    diagnosis: Annotated[_Words, Field(max_length=64)] | None = None
    """The confirmed diagnosis, when it is known: the name of a class, or a code of one's own."""
