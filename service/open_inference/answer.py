"""Responses: the outputs of a prediction, and the description of a model."""

from collections.abc import Mapping

from fastapi import Response
from pydantic_core import to_json

from eulerlora_client.contract.problems import InvalidParameter
from service.inference.models import ServedModel
from service.open_inference.body import BINARY, HEADER_LENGTH, JSON
from service.open_inference.messages import (
    IMAGE_INPUT,
    InferRequest,
    InferResponse,
    ModelMetadata,
    TensorMetadata,
)
from service.open_inference.parameters import wants_binary_output
from service.open_inference.tensors import OUTPUTS, encoded
from service.prediction.answer import Predicted
from service.routes.responses import server_timing

PLATFORM = "eulerlora"
PREDICTION_SET = "prediction_set"
IMAGE = TensorMetadata(name=IMAGE_INPUT, datatype="BYTES", shape=(1,))


def requested_outputs(request: InferRequest) -> Mapping[str, bool]:
    """Returns the names of the requested outputs, in order, and whether each is binary.

    Raises InvalidParameter.
    """
    has_set = "coverage" in request.parameters
    default = wants_binary_output(request.parameters)
    if not request.outputs:
        return {name: default for name in OUTPUTS if has_set or name != PREDICTION_SET}
    names = [output.name for output in request.outputs]
    if not OUTPUTS.keys() >= set(names) or len(set(names)) < len(names):
        raise InvalidParameter(f"outputs: expected distinct names among {', '.join(OUTPUTS)}")
    if PREDICTION_SET in names and not has_set:
        raise InvalidParameter(f"outputs: expected {PREDICTION_SET} only with coverage")
    return {
        output.name: default
        if output.parameters.binary_data is None
        else output.parameters.binary_data
        for output in request.outputs
    }


def infer_response(
    predicted: Predicted, request_id: str | None, outputs: Mapping[str, bool]
) -> Response:
    """Returns the response for a prediction.

    request_id: that of the JSON object. outputs: as `requested_outputs`.
    """
    prediction = predicted.prediction
    parts = [encoded(name, prediction, binary) for name, binary in outputs.items()]
    message = InferResponse(
        model_name=prediction.model,
        model_version=prediction.revision,
        **({} if request_id is None else {"id": request_id}),
        parameters={
            "mode": prediction.mode,
            "samples": prediction.samples,
            "trajectories": prediction.trajectories,
            "seed": prediction.seed,
            **prediction.model_dump(include={"sampled", "rows"}, exclude_none=True),
        },
        outputs=tuple(part.message for part in parts),
    )
    content = to_json(message.model_dump(exclude_unset=True))
    headers = {"Server-Timing": server_timing([predicted.timing])}
    is_binary = any(outputs.values())
    if is_binary:
        headers[HEADER_LENGTH] = str(len(content))
        content += b"".join(part.binary for part in parts)
    return Response(content, headers=headers, media_type=BINARY if is_binary else JSON)


def metadata_of(served: ServedModel) -> ModelMetadata:
    """Returns the description of a model. Its only version is the revision that is served."""
    classes = len(served.model.classes)
    return ModelMetadata(
        name=served.name,
        versions=(served.revision,),
        platform=PLATFORM,
        inputs=(IMAGE,),
        outputs=tuple(
            TensorMetadata(name=name, datatype=output.datatype, shape=output.shape(classes))
            for name, output in OUTPUTS.items()
        ),
    )
