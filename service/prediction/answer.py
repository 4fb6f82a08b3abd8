"""The answer for one image: its response body, timing, and triage decision."""

import logging
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from eulerlora.sampling.adaptive import standard_errors
from eulerlora.scores.uncertainty import summarise
from eulerlora_client.contract.answers import (
    ImageQuality,
    Prediction,
    PredictionWarning,
    ProblemDocument,
    StandardError,
    item_id,
)
from eulerlora_client.contract.problems import InternalError, ModelFailure, Problem
from eulerlora_client.policy.policy import Decision, Policy
from service.http.responses import problem_document
from service.inference.engine import ServedModel
from service.prediction.ood_scores import image_scores
from service.prediction.prediction_set import requested_set
from service.prediction.request import PredictRequest
from service.prediction.rounds import SampledResult
from service.telemetry.metrics import Timing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TriageDecision:
    """The quality of an image, and the decision of the triage policy."""

    quality: ImageQuality
    decision: Decision


@dataclass(frozen=True)
class Predicted:
    """The response body of one image and its timing; `triage` with a policy."""

    prediction: Prediction
    timing: Timing
    triage: TriageDecision | None = None


def prediction_of(
    sampled: SampledResult,
    request: PredictRequest,
    warnings: tuple[PredictionWarning, ...] = (),
) -> Prediction:
    """Returns the response body of one image.

    warnings: of the image, before those of the request. Raises ModelFailure if the network's
    output is not finite.
    """
    draw, served = sampled.draw, request.served
    output = sampled.result.output
    if not output.log_probabilities.isfinite().all():
        raise ModelFailure("the output of the model for this image is not finite")
    trajectories = output.log_probabilities.exp()
    uncertainty = summarise(trajectories[None])
    probabilities: list[float] = uncertainty.probabilities[0].tolist()
    msp = uncertainty.msp.item()
    ood = image_scores(output, uncertainty.msp, request, draw)
    optional = batch_item(request.request_id, request.index)
    if ood.scores.feature_distance is not None:
        optional["unfamiliar"] = ood.unfamiliar
    if request.query.detail is not None:
        optional["trajectory_probabilities"] = trajectories.tolist()
    if request.adaptive:
        optional |= {"sampled": draw.mode == "stoch", "rows": sampled.rows}
    if request.adaptive and draw.mode == "stoch":
        optional["standard_error"] = _standard_error(trajectories, served)
    if request.query.coverage is not None:
        found = requested_set(request, request.query.coverage, draw, uncertainty.probabilities[0])
        optional["prediction_set"] = found.prediction_set
        warnings = (*warnings, *found.warnings)
    return Prediction(
        request_id=request.request_id,
        model=served.name,
        revision=served.revision,
        mode=request.query.mode,
        samples=draw.samples,
        trajectories=len(trajectories),
        seed=draw.seed,
        label=served.model.classes[probabilities.index(msp)],
        probabilities=dict(zip(served.model.classes, probabilities, strict=True)),
        entropy=uncertainty.entropy.item(),
        expected_entropy=uncertainty.expected_entropy.item(),
        mutual_information=uncertainty.mutual_information.item(),
        msp=msp,
        ood=ood.scores.msp.flagged,
        ood_threshold=ood.scores.msp.threshold,
        ood_scores=ood.scores,
        warnings=(*warnings, *ood.warnings, *request.warnings),
        **optional,
    )


def triage_decision(
    policy: Policy | None, prediction: Prediction, quality: ImageQuality | None
) -> TriageDecision | None:
    """Returns the decision of the policy; None without a policy or a measured quality."""
    if policy is None or quality is None:
        return None
    return TriageDecision(quality, policy.decide(prediction, quality))


def batch_result(
    result: Predicted | BaseException, request_id: str, index: int
) -> Predicted | ProblemDocument:
    """Returns a batch's entry for one image; logs unexpected exceptions."""
    if isinstance(result, Predicted):
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


def _standard_error(trajectories: Tensor, served: ServedModel) -> StandardError:
    """Returns the standard errors of MSP and entropy.

    trajectories: (adapters * samples, classes) probabilities, adapter by adapter.
    """
    errors = standard_errors(trajectories.unflatten(0, (served.engine.rows(1), -1)))
    return StandardError(msp=errors.msp.item(), entropy=errors.entropy.item())
