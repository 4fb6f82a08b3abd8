"""`POST /triage`: the disposition of one image under the triage policy, with its prediction."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from eulerlora_client.contract.problems import PolicyNotApplicable
from eulerlora_client.contract.queries import PredictQuery, TriageQuery
from eulerlora_client.contract.triage import (
    MalignantGroup,
    PolicyReference,
    TriageReason,
    TriageResult,
)
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.wording import NOT_FITTED, REASONS, TITLES, WARNING, pathway
from service.inference.models import ServedModel, ServedModels
from service.prediction.answer import Predicted
from service.prediction.pipeline import Pipeline
from service.routes.predict import PROBLEMS, UPLOAD, json_response
from service.routes.query import strict_query_route

TRIAGE_PATH = "/triage"


def triage_routes(pipeline: Pipeline, models: ServedModels, policy: Policy) -> APIRouter:
    """Returns the route for dispositions."""
    router = APIRouter(route_class=strict_query_route(TriageQuery))

    @router.post(TRIAGE_PATH, response_model=TriageResult, responses=PROBLEMS, openapi_extra=UPLOAD)
    async def triage(request: Request, query: Annotated[TriageQuery, Query()]) -> Response:
        """Returns the suggested next step for one image, its reasons, and the prediction."""
        check_policy(policy, models.named(query.model))
        detailed = PredictQuery(**query.model_dump(), detail="trajectories")
        predicted = await pipeline.predict(request, detailed, policy)
        response = json_response(triage_result(predicted, policy), [predicted.timing])
        response.headers["Cache-Control"] = "no-store"
        return response

    return router


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
    )
