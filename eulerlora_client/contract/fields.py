"""The base class and the field types that the wire models share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Nats = Annotated[float, Field(ge=0)]


class WireModel(BaseModel):
    """Base of all response bodies: immutable, and unknown keys of later servers are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())
