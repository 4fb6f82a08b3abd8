"""The answer for one image: its response body."""

import logging
from typing import Any

from eulerlora.prediction.answer import RunOptions, answer, response_fields
from eulerlora_client.contract.answers import (
    Prediction,
    PredictionWarning,
    ProblemDocument,
    TriageResult,
    Variance,
    item_id,
)
from eulerlora_client.contract.problems import InternalError, ModelFailure, Problem
from eulerlora_client.errors import NonFiniteError
from service.http.responses import problem_document
from service.inference.queue import InferenceResult
from service.prediction.request import PredictRequest

logger = logging.getLogger(__name__)


Answer = Prediction | TriageResult
"""The response body of one image: with a triage policy, the result of its decision."""


def response_body(
    result: InferenceResult,
    request: PredictRequest,
    warnings: tuple[PredictionWarning, ...] = (),
) -> Prediction:
    """Returns the response body of one image.

    warnings: of the image, before those of the request. Raises ModelFailure if the network's
    output is not finite.
    """
    served, query, draw = request.served, request.query, result.draw
    model, output = served.model, result.output
    options = RunOptions(query.mode, request.samples, draw.sampler, model.precision, request.views)
    try:
        answered = answer([output], model.config, options, query.coverage)
    except NonFiniteError as error:
        reason = "the output of the model for this image is not finite"
        raise ModelFailure(reason) from error
    fields = batch_item(request.request_id, request.index)
    fields |= response_fields(answered, 0, model.classes)
    if query.detail is not None:
        fields["trajectory_probabilities"] = answered.trajectories[0].tolist()
        parts = {name: part.item() for name, part in vars(answered.variance).items()}
        fields["variance"] = Variance(**parts)
        if answered.views > 1:
            fields["trajectory_views"] = answered.trajectory_views[0].tolist()
    return Prediction(
        request_id=request.request_id,
        model=served.name,
        revision=served.revision,
        mode=query.mode,
        trajectories=len(output.logits),
        seed=draw.seed,
        warnings=(*warnings, *answered.warnings, *request.warnings),
        **fields,
    )


def batch_result(
    result: Answer | BaseException, request_id: str, index: int
) -> Answer | ProblemDocument:
    """Returns a batch's entry for one image; logs unexpected exceptions."""
    if isinstance(result, Answer):
        return result
    if not isinstance(result, Exception):
        raise result
    if not isinstance(result, Problem):
        logger.error("request %s failed for image %d", request_id, index, exc_info=result)
        result = InternalError("the failure was logged under the request id")
    document = problem_document(result, request_id)
    return document.model_copy(update=batch_item(request_id, index))


def batch_item(request_id: str, index: int | None) -> dict[str, Any]:
    """Returns the fields that identify an image of a batch; none without an index."""
    return {} if index is None else {"index": index, "item_id": item_id(request_id, index)}
