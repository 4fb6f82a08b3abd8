"""Adapter and backbone settings: frozen, validated once, the same in recipes and checkpoints."""

import reprlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from eulerlora.errors import SettingsError

Mode = Literal["det", "stoch"]
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number of samples: as many as it takes (`eulerlora.adaptive_sampling`)."""

DEFAULT_SAMPLES = 4

Sampler = Literal["independent", "balanced"]
SAMPLERS: tuple[Sampler, ...] = ("independent", "balanced")
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
PositiveInt = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Base of all settings: immutable, finite, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnySettings = TypeVar("AnySettings", bound=Settings)


def validated(kind: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Returns settings of a kind from a user's values. Raises SettingsError, one line."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError(first_fault(error, kind)) from error


EXPECTED = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "at least {min_length} item(s)",
}
EXPECTED_BY_PREFIX = {
    "int": "an integer",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}
"""What a key expects, by the type of pydantic's error or by the first word of that type."""


def first_fault(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """Returns the first validation error in one line that begins with the key.

    kind: the model that was validated; an unknown key then gets a suggestion.
    """
    faults = error.errors()
    key = _key(faults[0])
    if faults[0]["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(key, kind)}"
    if faults[0]["type"] == "json_invalid":
        return "expected valid JSON"
    if faults[0]["type"] == "missing":
        return f"missing key {key}"
    if faults[0]["type"] == "value_error":
        reason = str(faults[0]["ctx"]["error"])
        return f"{key}: {reason}" if key else reason
    alternatives = dict.fromkeys(_expected(fault) for fault in faults if _key(fault) == key)
    reason = f"expected {' or '.join(alternatives)}, got {reprlib.repr(faults[0]['input'])}"
    return f"{key}: {reason}" if key else reason


def _key(fault: ErrorDetails) -> str:
    """Returns a dotted key without pydantic's names of the alternatives of a union."""
    parts = [str(part) for part in fault["loc"]]
    return ".".join(
        part
        for part in parts
        if (part not in ("int", "str") and part.isidentifier()) or part.isdigit()
    )


def _expected(fault: ErrorDetails) -> str:
    name = fault["type"]
    general = EXPECTED_BY_PREFIX.get(name.partition("_")[0], "another value")
    return EXPECTED.get(name, general).format(**fault.get("ctx", {}))


def _suggestion(key: str, kind: type[BaseModel] | None) -> str:
    """Returns "; did you mean KEY?" if the model has a similar key, or an empty string."""
    *parents, last = key.split(".")
    model = kind
    for parent in parents:
        if model is not None and not parent.isdigit():
            field = model.model_fields.get(parent)
            model = None if field is None else _model_in(field.annotation)
    similar = get_close_matches(last, model.model_fields if model is not None else (), n=1)
    return f"; did you mean {'.'.join([*parents, *similar])}?" if similar else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model in an annotation such as Model, Model | None or tuple[Model, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)


class AdapterSettings(Settings):
    """What a set of adapters is: their number, rank and law of sampling.

    adapters: how many independent adapters A, each with its own classification head.
    rank: rank-one directions r of each adapter at each projection.
    min_rank: least number of active directions Kmin, 1..rank.
    steps: Euler steps T at the output projection.
    scale: sigma, the size of the output projection's fluctuation; 0 removes it.
    """

    adapters: PositiveInt = 2
    rank: PositiveInt = 20
    min_rank: PositiveInt = 10
    steps: PositiveInt = 2
    scale: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="after")
    def _min_rank_within_rank(self) -> Self:
        if self.min_rank > self.rank:
            raise ValueError(f"min_rank must be at most rank={self.rank}, not {self.min_rank}")
        return self


class BackboneSettings(Settings):
    """The shape of a `torchvision.models.VisionTransformer`; sizes in pixels or features."""

    image_size: PositiveInt = 224
    patch_size: PositiveInt = 32
    layers: PositiveInt = 12
    heads: PositiveInt = 12
    width: PositiveInt = 768
    mlp_width: PositiveInt = 3072

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        for part, whole in (("patch_size", "image_size"), ("heads", "width")):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(
                    f"{whole}={getattr(self, whole)} must be a multiple of "
                    f"{part}={getattr(self, part)}"
                )
        return self

    @property
    def tokens(self) -> int:
        """Patches of an image plus the class token."""
        return int((self.image_size // self.patch_size) ** 2) + 1


class RuntimeSettings(Settings):
    """How a network is run; none of it changes an answer by more than rounding.

    precision: of matrix products and what lies between them. compiler: a backend of
    torch.compile, such as "inductor", with CUDA graphs on a CUDA device; the first batch of each
    size then takes long. None runs operation by operation.
    """

    precision: Precision = "float32"
    compiler: str | None = None


DEFAULT_RUNTIME = RuntimeSettings()
"""Float32, not compiled."""


class Draw(Settings):
    """How one image is to be answered: mode, samples per adapter, and how they are drawn.

    samples: S, trajectories per adapter in `stoch`; `det` has exactly one.
    seed: 0 <= seed < 2**32, the range that torch's CPU generator tells apart.
    sampler: whether the samples of an adapter are drawn independently of one another or balanced
    against one another; each alone has the same law in both. `det` draws nothing.
    first: samples that were run before; only those after them are run. Balanced ones continue the
    draw that a question for fewer samples began, independent ones have draws of their own.
    """

    mode: Mode = "det"
    samples: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    sampler: Sampler = "independent"
    first: Annotated[int, Field(ge=0)] = 0

    @property
    def count(self) -> int:
        """Samples of each adapter that are run."""
        return self.samples - self.first

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.count < 1:
            raise ValueError(f"first must be below samples={self.samples}, not {self.first}")
        return self

    @model_validator(mode="after")
    def _det_has_one_sample(self) -> Self:
        if self.mode == "det" and self.samples != 1:
            raise ValueError("samples belongs to mode stoch; det takes one pass for each adapter")
        return self
