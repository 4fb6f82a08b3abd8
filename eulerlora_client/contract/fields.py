"""The base class and the field types that the wire models share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Nats = Annotated[float, Field(ge=0)]
Revision = Annotated[
    str, Field(description="SHA-256 of the model's files; changes whenever its answers may.")
]
RequestId = Annotated[
    str, Field(description="The value of the header X-Request-ID; the log and the audit have it.")
]
Index = Annotated[
    int | None,
    Field(ge=0, description="Position of the image in its batch, from 0; only in a batch."),
]
ItemId = Annotated[
    str | None,
    Field(description="Request id, colon, index; the audit log has it. Only in a batch."),
]


class WireModel(BaseModel):
    """Base of all response bodies: immutable, and unknown keys of later servers are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def item_id(request_id: str, index: int) -> str:
    """Returns the id of one image of a batch. No request id contains a colon."""
    return f"{request_id}:{index}"
