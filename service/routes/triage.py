"""`POST /triage` and `POST /triage/batch`: dispositions under the triage policy."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from eulerlora_client.contract.problems import PolicyNotApplicable
from eulerlora_client.contract.queries import PredictQuery, TriageQuery
from eulerlora_client.contract.triage import (
    MalignantGroup,
    PolicyReference,
    TriageBatch,
    TriageReason,
    TriageResult,
)
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.wording import NOT_FITTED, REASONS, TITLES, WARNING, pathway
from service.inference.models import ServedModel, ServedModels
from service.prediction.answer import Predicted
from service.prediction.pipeline import Pipeline
from service.routes.openapi import TRIAGE, UPLOAD_PROBLEMS, documented
from service.routes.predict import UPLOAD, UPLOADS
from service.routes.query import strict_query_route
from service.routes.responses import json_response

TRIAGE_PATH = "/triage"
TRIAGE_BATCH_PATH = "/triage/batch"

PROBLEMS = (*UPLOAD_PROBLEMS, PolicyNotApplicable)
HEADERS = ("Server-Timing", "Cache-Control")


def triage_routes(pipeline: Pipeline, models: ServedModels, policy: Policy) -> APIRouter:
    """Returns the routes for the dispositions of one image and of many."""
    router = APIRouter(route_class=strict_query_route(TriageQuery), tags=[TRIAGE])

    @router.post(
        TRIAGE_PATH,
        response_model=TriageResult,
        responses=documented("triage", PROBLEMS, HEADERS),
        openapi_extra=UPLOAD,
    )
    async def triage(request: Request, query: Annotated[TriageQuery, Query()]) -> Response:
        """Returns the suggested next step for one image, its reasons, and the prediction."""
        check_policy(policy, models.named(query.model))
        predicted = await pipeline.predict(request, _detailed(query), policy)
        return _not_cached(json_response(triage_result(predicted, policy), [predicted.timing]))

    @router.post(
        TRIAGE_BATCH_PATH,
        response_model=TriageBatch,
        responses=documented("triage_batch", PROBLEMS, HEADERS),
        openapi_extra=UPLOADS,
    )
    async def triage_batch(request: Request, query: Annotated[TriageQuery, Query()]) -> Response:
        """Returns a disposition or a problem for each of many images, in order."""
        check_policy(policy, models.named(query.model))
        batch = await pipeline.predict_batch(request, _detailed(query), policy)
        results = tuple(
            triage_result(result, policy) if isinstance(result, Predicted) else result
            for result in batch
        )
        timings = [result.timing for result in batch if isinstance(result, Predicted)]
        return _not_cached(json_response(TriageBatch(results=results), timings))

    return router


def _detailed(query: TriageQuery) -> PredictQuery:
    """Returns the query for a prediction with the trajectories, which the policy compares."""
    return PredictQuery(**query.model_dump(), detail="trajectories")


def _not_cached(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


def check_policy(policy: Policy, served: ServedModel) -> None:
    """Raises PolicyNotApplicable if the model lacks a class of the malignant group."""
    missing = [name for name in policy.malignant.classes if name not in served.model.classes]
    if missing:
        raise PolicyNotApplicable(
            f"the policy needs the classes {', '.join(missing)}, which the model {served.name} "
            "does not have"
        )


def triage_result(predicted: Predicted, policy: Policy) -> TriageResult:
    """Returns the response body for one prediction that `policy` decided on."""
    assert predicted.triage is not None
    prediction, decision = predicted.prediction, predicted.triage.decision
    item = prediction.model_dump(include={"index", "item_id"}, exclude_unset=True)
    return TriageResult(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=pathway(decision),
        reasons=tuple(TriageReason(code=code, words=REASONS[code]) for code in decision.reasons),
        warning=WARNING,
        policy=PolicyReference(
            version=decision.policy_version,
            hash=decision.policy_hash,
            notice=None if policy.fitted_to(prediction) else NOT_FITTED,
        ),
        malignant=MalignantGroup(
            classes=policy.malignant.classes,
            probability=policy.malignant_probability(prediction),
            urgent=policy.malignant.urgent,
        ),
        quality=predicted.triage.quality,
        prediction=prediction,
        **item,
    )
