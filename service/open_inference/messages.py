"""Messages of the protocol: https://github.com/kserve/open-inference-protocol.

Unknown members of a request are ignored, unknown parameters are errors.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from eulerlora_client.contract.answers import WireModel

DataType = Literal["BOOL", "BYTES", "FP64"]
Parameter = bool | int | float | str
Shape = tuple[int, ...]

IMAGE_INPUT = "image"


class RequestMessage(BaseModel):
    """Base of the parts of a request: JSON types are not converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ParametersMessage(RequestMessage):
    """Base of parameters, whose names are checked."""

    model_config = ConfigDict(extra="forbid")


class InputParameters(ParametersMessage):
    """Parameters of the input.

    binary_data_size: bytes of the tensor after the JSON object; None if the tensor is in `data`.
    content_type: of the strings in `data`.
    """

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    content_type: Literal["base64"] = "base64"


class RequestInput(RequestMessage):
    """The image. data: base64, flat or in the nested form of the shape."""

    name: Literal["image"]
    shape: tuple[Literal[1]] | tuple[Literal[1], Literal[1]]
    datatype: Literal["BYTES"]
    parameters: InputParameters = InputParameters()
    data: tuple[str | tuple[str, ...], ...] | None = None


class OutputParameters(ParametersMessage):
    """Parameters of an output. binary_data: None for the default of the request."""

    binary_data: bool | None = None


class RequestOutput(RequestMessage):
    """A requested output."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(RequestMessage):
    """The JSON object of an inference request. outputs: all if empty."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    parameters: dict[str, Parameter] = {}
    inputs: Annotated[tuple[RequestInput, ...], Field(min_length=1, max_length=1)]
    outputs: Annotated[tuple[RequestOutput, ...], Field(max_length=32)] = ()


class TensorMetadata(WireModel):
    """Name, type and shape of an input or output; -1 stands for any size."""

    name: str
    datatype: DataType
    shape: Shape


class ServerMetadata(WireModel):
    """The response of `/v2`."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ModelMetadata(WireModel):
    """The response of `/v2/models/{name}`."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class ModelReady(WireModel):
    """The response of `/v2/models/{name}/ready`."""

    name: str
    ready: bool


class ResponseOutput(WireModel):
    """An output. data: absent if the tensor follows the JSON object."""

    name: str
    datatype: DataType
    shape: Shape
    parameters: dict[str, Parameter] | None = None
    data: tuple[Parameter, ...] | None = None


class InferResponse(WireModel):
    """The JSON object of a response. id: that of the request, if it has one."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Parameter]
    outputs: tuple[ResponseOutput, ...]
