"""`/triage`, its batches and its policy: dispositions under the triage policy."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, create_model

from eulerlora.sampling.adaptive import StoppingRule
from eulerlora_clinic.policy.policy import Policy, default_sampling
from eulerlora_clinic.policy.results import lesion_results, policy_description, triage_result
from eulerlora_contract.answers import (
    ImageQuality,
    PolicyDescription,
    TriageBatch,
    TriageResult,
    urgency,
)
from eulerlora_contract.problems import InvalidParameter, NotAcceptable, PolicyNotApplicable
from eulerlora_contract.queries import (
    PredictQuery,
    TriageBatchQuery,
    TriageQuery,
)
from eulerlora_contract.sampling import Mode
from service.extensions import AnsweredImage, Interpretation, Predictor
from service.http.requests import RequestRoute, parsed_query
from service.http.responses import JSON, batch_response, json_response
from service.inference.engine import ServedModel, ServedModels
from service.routes.openapi import (
    KEYED_PROBLEMS,
    TRIAGE,
    UPLOAD_PROBLEMS,
    documented,
    query_parameters,
)
from service.routes.predict import UPLOAD, UPLOADS
from service.telemetry.records import ShadowResult

_Query = TypeVar("_Query", bound=TriageQuery)

TRIAGE_PATH = "/triage"
TRIAGE_BATCH_PATH = "/triage/batch"
_POLICY_PATH = "/triage/policy"
_PROBLEMS = (*UPLOAD_PROBLEMS, PolicyNotApplicable)
_HEADERS = ("Server-Timing", "Cache-Control")
_NOT_CACHED = {"Cache-Control": "no-store"}


@dataclass(frozen=True)
class TriageFormat:
    """A format of the answer of `POST /triage`, beside JSON, for requests that accept it.

    Attributes:
        render: From the result and the model card, in Markdown, to a JSON object.
        schema_name: Name of its schema in the OpenAPI document.
        schema: JSON schema of this object.
        parameters: The accepted values of parameters of the media type, by name in lower case;
            absent ones are accepted too.
    """

    render: Callable[[TriageResult, str], Mapping[str, Any]]
    schema_name: str
    schema: Mapping[str, Any]
    parameters: Mapping[str, Collection[str]] = field(default_factory=dict)


class Triage(Interpretation):
    """Decides on the predictions of a request with a policy.

    Attributes:
        lesions: A random id for the lesion of each image, for the audit log: a request id may come
            again. Empty without lesions.
    """

    needs_quality = True

    def __init__(self, policy: Policy, lesions: Sequence[int] | None = None) -> None:
        self._policy = policy
        self._count = None if lesions is None else len(lesions)
        names = {number: uuid4().hex for number in lesions or ()}
        self.lesions = dict(enumerate(names[number] for number in lesions or ()))

    def check_model(self, served: ServedModel) -> None:
        """Compares the classes with those of the policy.

        Raises:
            PolicyNotApplicable: If the model lacks a class of the policy's target.
        """
        classes = served.model.classes
        missing = [name for name in self._policy.target.classes if name not in classes]
        if missing:
            raise PolicyNotApplicable(
                f"the policy needs the classes {', '.join(missing)}, which the model "
                f"{served.name} does not have; eulerlora serve --policy FILE applies another"
            )

    def check_images(self, count: int) -> None:
        """Compares the number of images with that of the lesion numbers.

        Raises:
            InvalidParameter: Unless every image has the number of a lesion, or none has.
        """
        if self._count not in (None, count):
            raise InvalidParameter(
                f"lesions: expected a number for each of {count} images, got {self._count}"
            )

    def stopping_rule(
        self, rule: StoppingRule, served: ServedModel, quality: ImageQuality | None
    ) -> StoppingRule:
        """The disposition must be settled too."""
        assert quality is not None
        reasons = tuple(self._policy.quality_reasons(quality))
        return replace(rule, settled=self._policy.settled(served.model.classes, reasons))

    def body(self, answered: AnsweredImage) -> TriageResult:
        prediction, quality = answered.prediction, answered.quality
        assert answered.predictions is not None and prediction is not None and quality is not None
        decision = self._policy.decide(answered.predictions, quality)
        classes = answered.request.served.model.config.classes
        names = {entry.name: entry.description for entry in classes}
        return triage_result(prediction, quality, decision, self._policy, names)

    def differences(self, body: BaseModel, other: BaseModel) -> dict[str, ShadowResult]:
        assert isinstance(body, TriageResult) and isinstance(other, TriageResult)
        more = urgency(other.disposition) - urgency(body.disposition)
        return {"disposition": "same" if not more else "more_urgent" if more > 0 else "less_urgent"}


def triage_routes(
    pipeline: Predictor,
    models: ServedModels,
    policy: Policy,
    formats: Mapping[str, TriageFormat],
) -> APIRouter:
    """The routes for the dispositions of one image, and of many with the lesions that they show.

    Args:
        pipeline: Answers the requests.
        models: Served; their cards are part of some formats.
        policy: Decides.
        formats: Of the answer for one image, beside JSON, by media type.
    """
    offered = {JSON: {}, **{name: one.parameters for name, one in formats.items()}}
    described = {
        name: {"schema": {"$ref": f"#/components/schemas/{one.schema_name}"}}
        for name, one in formats.items()
    }
    query_type = _with_default_mode(TriageQuery, policy)
    batch_query_type = _with_default_mode(TriageBatchQuery, policy)
    router = APIRouter(tags=[TRIAGE], route_class=RequestRoute)

    @router.post(
        TRIAGE_PATH,
        response_model=TriageResult,
        responses=documented("triage", (*_PROBLEMS, NotAcceptable), _HEADERS, described),
        openapi_extra=query_parameters(query_type) | UPLOAD,
    )
    async def triage(request: Request) -> Response:
        """Returns the suggested next step for one image, its reasons, and the prediction.

        The header Accept chooses the format, by default JSON.
        """
        query = parsed_query(request, query_type)
        media_type = _chosen_media_type(request.headers.get("Accept"), offered)
        asked = _prediction_query(query, policy)
        card = models.named(asked.model).card
        result = await pipeline.predict(request, asked, Triage(policy))
        assert isinstance(result, TriageResult)
        chosen = formats.get(media_type)
        answer = result if chosen is None else chosen.render(result, card)
        return json_response(answer, media_type, _NOT_CACHED)

    @router.post(
        TRIAGE_BATCH_PATH,
        response_model=TriageBatch,
        responses=documented("triage_batch", _PROBLEMS, _HEADERS),
        openapi_extra=query_parameters(batch_query_type) | UPLOADS,
    )
    async def triage_batch(request: Request) -> Response:
        """Returns a disposition or a problem for each of many images, in order.

        With `lesions`, also a disposition for each lesion: that of its most urgent image.
        """
        query = parsed_query(request, batch_query_type)
        asked, numbers = _prediction_query(query, policy), _lesion_numbers(query)
        results = await pipeline.predict_batch(request, asked, Triage(policy, numbers))
        if numbers is None:
            return batch_response(_NOT_CACHED, results=results)
        answers = [one if isinstance(one, TriageResult) else None for one in results]
        lesions = lesion_results(answers, numbers)
        return batch_response(_NOT_CACHED, results=results, lesions=lesions)

    return router


def _chosen_media_type(
    accept: str | None, offered: Mapping[str, Mapping[str, Collection[str]]]
) -> str:
    """The media type that an Accept header prefers (RFC 9110, 12.5.1).

    The most specific range that includes a media type decides its quality.

    Args:
        accept: The header; None without one.
        offered: The accepted values of the parameters of each media type, by their names; the first
            media type wins among equals, and without a header.

    Raises:
        NotAcceptable: If the header excludes all of them.
    """
    best = dict.fromkeys(offered, (0, 0.0))  # specificity and quality
    for entry in ((accept or "").strip() or "*/*").lower().split(","):
        media_range, *parameters = (part.strip() for part in entry.split(";"))
        values = {name: text.strip('"') for name, _, text in (p.partition("=") for p in parameters)}
        for media_type, accepted in offered.items():
            ranges = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
            if media_range in ranges and all(
                values[name] in accepted[name] for name in values.keys() & accepted.keys()
            ):
                rank = ranges.index(media_range) + 1, _quality(values.get("q", "1"))
                best[media_type] = max(best[media_type], rank)
    chosen = max(offered, key=lambda media_type: best[media_type][1])
    if best[chosen][1] == 0:
        described = (
            "; ".join([name, *(f"{key}={' or '.join(texts)}" for key, texts in values.items())])
            for name, values in offered.items()
        )
        raise NotAcceptable(f"expected Accept to include one of {', '.join(described)}")
    return chosen


def _quality(text: str) -> float:
    """A quality in [0, 1]; 0 for text that is no number."""
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def policy_routes(policy: Policy) -> APIRouter:
    router = APIRouter(tags=[TRIAGE])
    content = policy_description(policy).model_dump_json()  # not rounded: the hash covers it

    @router.get(
        _POLICY_PATH,
        response_model=PolicyDescription,
        responses=documented("triage_policy", KEYED_PROBLEMS, ["Cache-Control"]),
    )
    async def triage_policy() -> Response:
        """Returns the policy, its measured performance, and the defaults of `/triage`."""
        return Response(content, headers=_NOT_CACHED, media_type=JSON)

    return router


def _with_default_mode(query_type: type[_Query], policy: Policy) -> type[_Query]:
    """The query type with the policy's mode as the default."""
    default_mode, count = default_sampling(policy.evidence)
    samples = "" if count is None else f" with {count} sample{'s' * (count != 1)}"
    described = f"{TriageQuery.model_fields['mode'].description} Here: {default_mode}{samples}."

    mode: Any = (Annotated[Mode, Field(description=described)], default_mode)
    return create_model(query_type.__name__, __base__=query_type, mode=mode)


def _lesion_numbers(query: TriageBatchQuery) -> list[int] | None:
    """The number of the lesion of each image; None if the request has none."""
    return None if query.lesions is None else [*map(int, query.lesions.split(","))]


def _prediction_query(query: TriageQuery, policy: Policy) -> PredictQuery:
    """The query for a prediction; values that are not given are those of the policy's threshold."""
    mode, samples = default_sampling(policy.evidence, query.mode, query.samples)
    asked = query.model_dump(include=set(TriageQuery.model_fields))
    values = {**asked, "mode": mode, "samples": samples}
    return PredictQuery(**values)
