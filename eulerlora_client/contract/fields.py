"""The base class and the field types that the wire models share."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["det", "stoch"]
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""In place of a number of samples: the service draws rounds until the result has converged."""

MAX_SAMPLES = 64
DEFAULT_SAMPLES = 4

PositiveInt = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Nats = Annotated[float, Field(ge=0)]


class WireModel(BaseModel):
    """Base of all response bodies: immutable, and unknown keys of later servers are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())
