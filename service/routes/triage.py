"""`POST /triage`: what to do next for one picture, as a policy has it, with its prediction."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from eulerlora_client.contract.problems import PolicyNotApplicable
from eulerlora_client.policy.policy import Disposition, Policy, Reason
from eulerlora_client.policy.quality import Quality
from eulerlora_client.policy.wording import NOT_FITTED, REASONS, TITLES, WARNING, pathway
from service.inference.models import ServedModel, ServedModels
from service.prediction.pipeline import Pipeline, Predicted
from service.routes.predict import PROBLEMS, UPLOAD, answer
from service.routes.query import question_route
from service.schemas import PredictionBody, PredictQuery, TriageQuery

TRIAGE_PATH = "/triage"


class ReasonBody(BaseModel):
    """A rule that applies: its code, and what it means."""

    code: Reason
    words: str


class PolicyBody(BaseModel):
    """The policy that decided. notice: what is not known of it for this question, if anything."""

    version: int
    hash: str
    notice: str | None


class MalignantBody(BaseModel):
    """The malignant group: its summed probability, and from which on a picture is urgent."""

    classes: list[str]
    probability: float
    urgent: float


class TriageBody(BaseModel):
    """What to do next for a picture, why, and what that rests on."""

    disposition: Disposition
    title: str
    pathway: str
    reasons: list[ReasonBody]
    warning: str
    policy: PolicyBody
    malignant: MalignantBody
    quality: Quality
    prediction: PredictionBody


def triage_routes(pipeline: Pipeline, models: ServedModels, policy: Policy) -> APIRouter:
    """The route that answers with a disposition."""
    router = APIRouter(route_class=question_route(TriageQuery))

    @router.post(TRIAGE_PATH, response_model=TriageBody, responses=PROBLEMS, openapi_extra=UPLOAD)
    async def triage(request: Request, query: Annotated[TriageQuery, Query()]) -> Response:
        """What to do next for one picture, and the prediction that this rests on."""
        check_policy(policy, models.named(query.model))
        detailed = PredictQuery(**query.model_dump(), detail="trajectories")
        predicted = await pipeline.predict(request, detailed, policy)
        response = answer(triage_body(predicted, policy), [predicted.timing])
        response.headers["Cache-Control"] = "no-store"
        return response

    return router


def check_policy(policy: Policy, served: ServedModel) -> None:
    """Raises PolicyNotApplicable where the model lacks a class of the malignant group."""
    missing = [name for name in policy.malignant.classes if name not in served.model.classes]
    if missing:
        raise PolicyNotApplicable(
            f"the policy needs the classes {', '.join(missing)}, which the model {served.name} "
            "does not have"
        )


def triage_body(predicted: Predicted, policy: Policy) -> TriageBody:
    """The response for one prediction that `policy` decided on."""
    assert predicted.triage is not None
    prediction, decision = predicted.body, predicted.triage.decision
    return TriageBody(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=pathway(decision),
        reasons=[ReasonBody(code=each, words=REASONS[each]) for each in decision.reasons],
        warning=WARNING,
        policy=PolicyBody(
            version=decision.policy_version,
            hash=decision.policy_hash,
            notice=None if policy.fitted_to(prediction) else NOT_FITTED,
        ),
        malignant=MalignantBody(
            classes=list(policy.malignant.classes),
            probability=policy.malignant_probability(prediction),
            urgent=policy.malignant.urgent,
        ),
        quality=predicted.triage.quality,
        prediction=prediction,
    )
