"""The outputs of a prediction as tensors, in JSON or in binary form."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eulerlora_client.contract.answers import Prediction
from service.open_inference.body import ELEMENT_LENGTH
from service.open_inference.messages import DataType, Parameter, ResponseOutput, Shape
from service.routes.responses import rounded

ANY_SIZE = -1


@dataclass(frozen=True)
class Output:
    """An output of every model.

    values: of a prediction, none if it is unknown. shape: of `classes` classes.
    """

    datatype: DataType
    values: Callable[[Prediction], Sequence[Parameter]]
    shape: Callable[[int], Shape]


@dataclass(frozen=True)
class EncodedOutput:
    """An output of a response, and its bytes after the JSON object, if any."""

    message: ResponseOutput
    binary: bytes = b""


def _scalar(datatype: DataType, value: Callable[[Prediction], Parameter]) -> Output:
    return Output(datatype, lambda prediction: (value(prediction),), lambda _: (1,))


def _optional(value: Callable[[Prediction], bool | None]) -> Output:
    def values(prediction: Prediction) -> Sequence[Parameter]:
        flag = value(prediction)
        return () if flag is None else (flag,)

    return Output("BOOL", values, lambda _: (ANY_SIZE,))


OUTPUTS: Mapping[str, Output] = {
    "label": _scalar("BYTES", lambda prediction: prediction.label),
    "classes": Output("BYTES", lambda prediction: prediction.classes, lambda classes: (classes,)),
    "probabilities": Output(
        "FP64",
        lambda prediction: tuple(prediction.probabilities.values()),
        lambda classes: (1, classes),
    ),
    "entropy": _scalar("FP64", lambda prediction: prediction.entropy),
    "expected_entropy": _scalar("FP64", lambda prediction: prediction.expected_entropy),
    "mutual_information": _scalar("FP64", lambda prediction: prediction.mutual_information),
    "msp": _scalar("FP64", lambda prediction: prediction.msp),
    "ood": _optional(lambda prediction: prediction.ood),
    "unfamiliar": _optional(lambda prediction: prediction.unfamiliar),
    "prediction_set": Output(
        "BYTES",
        lambda prediction: prediction.prediction_set.labels if prediction.prediction_set else (),
        lambda _: (ANY_SIZE,),
    ),
    "warnings": Output(
        "BYTES",
        lambda prediction: tuple(warning.code for warning in prediction.warnings),
        lambda _: (ANY_SIZE,),
    ),
}
"""By name, in the order of a response to a request that names none."""


def encoded(name: str, prediction: Prediction, binary: bool) -> EncodedOutput:
    """Returns one of OUTPUTS for a prediction, with the numbers of `/predict`."""
    output = OUTPUTS[name]
    values = tuple(rounded(output.values(prediction)))
    shape = tuple(
        len(values) if size == ANY_SIZE else size
        for size in output.shape(len(prediction.probabilities))
    )
    if not binary:
        message = ResponseOutput(name=name, datatype=output.datatype, shape=shape, data=values)
        return EncodedOutput(message)
    content = b"".join(_bytes_of(value) for value in values)
    message = ResponseOutput(
        name=name,
        datatype=output.datatype,
        shape=shape,
        parameters={"binary_data_size": len(content)},
    )
    return EncodedOutput(message, content)


def _bytes_of(value: Parameter) -> bytes:
    """Returns an element of a binary tensor, little-endian."""
    if isinstance(value, bool):
        return struct.pack("?", value)
    if isinstance(value, str):
        text = value.encode()
        return ELEMENT_LENGTH.pack(len(text)) + text
    return struct.pack("<d", value)
