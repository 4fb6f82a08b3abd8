"""`GET /models`, `/models/{name}`, `/livez`, `/readyz` and `/metrics`."""

import asyncio
from collections.abc import Iterable, Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from eulerlora.scores.prediction_sets import ALWAYS_INCLUDED, PredictionSetCalibration
from eulerlora_contract.answers import (
    ImageLimits,
    ModelDetails,
    ModelList,
    ModelSummary,
    PredictionSetOptions,
    ServiceStatus,
)
from eulerlora_contract.problems import NotReady, UnknownModel
from eulerlora_contract.sampling import MAX_SAMPLES
from service.decoding.formats import MEDIA_TYPES
from service.extensions import Extension
from service.fair_sharing import ClientTurns
from service.http.requests import while_connected
from service.http.responses import json_response
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.routes.openapi import (
    KEYED_PROBLEMS,
    MODELS,
    OPEN_PROBLEMS,
    OPERATIONS,
    TEXT,
    documented,
)
from service.settings import ServiceSettings
from service.telemetry.metrics import Metrics

_SCRAPE_INTERVAL_S = 0.02
"""Between two answers of /metrics; each takes about 1 ms of the event loop."""

_NAME_PARAMETER = {
    "parameters": [
        {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "Name of a served model.",
            "schema": {"type": "string"},
        }
    ]
}
"""A parameter of FastAPI would add a validation error in another format to the description."""

_MARKDOWN, _PLAIN = "text/markdown", "text/plain"


def model_routes(
    models: ServedModels, settings: ServiceSettings, extensions: Iterable[Extension]
) -> APIRouter:
    router = APIRouter(tags=[MODELS])

    @router.get(
        "/models", response_model=ModelList, responses=documented("list_models", KEYED_PROBLEMS)
    )
    async def list_models() -> Response:
        """Returns the served models, the default first."""
        summaries = tuple(
            ModelSummary(
                name=name,
                revision=served.model.revision,
                source=served.source,
                licence=served.licence,
                classes=tuple(served.model.classes),
                precision=served.model.precision,
                runtime=served.model.runtime.name,
                default=name == models.default,
            )
            for name, served in models.items()
        )
        return json_response(ModelList(models=summaries))

    @router.get(
        "/models/{name}",
        response_model=ModelDetails,
        responses=documented("describe_model", (*KEYED_PROBLEMS, UnknownModel)),
        openapi_extra=_NAME_PARAMETER,
    )
    async def describe_model(request: Request) -> Response:
        """Returns classes, limits, thresholds, shift and provenance of a model."""
        name = request.path_params["name"]
        return json_response(model_details(models.named(name), settings, extensions))

    @router.get(
        "/models/{name}/card",
        response_class=PlainTextResponse,
        responses=documented(
            "model_card", (*KEYED_PROBLEMS, UnknownModel), content={_MARKDOWN: TEXT}
        ),
        openapi_extra=_NAME_PARAMETER,
    )
    async def model_card(request: Request) -> Response:
        """Returns the model card in Markdown; it is empty if the checkpoint has none.

        It is `text/plain` if Accept names that.
        """
        served = models.named(request.path_params["name"])
        is_plain = _PLAIN in request.headers.get("Accept", "")
        return PlainTextResponse(served.card, media_type=_PLAIN if is_plain else _MARKDOWN)

    return router


def model_details(
    served: ServedModel, settings: ServiceSettings, extensions: Iterable[Extension] = ()
) -> ModelDetails:
    """The response body of `/models/{name}`."""
    config, images = served.model.config, settings.images
    media_types = (*MEDIA_TYPES, *(container.media_type for container in images.containers))
    return ModelDetails(
        name=served.name,
        revision=served.model.revision,
        source=served.source,
        classes=config.classes,
        adapters=config.adapters.settings.adapters,
        input_size=config.preprocessing.size,
        precision=served.model.precision,
        precision_reason=served.model.precision_reason,
        runtime=served.model.runtime.name,
        runtime_reason=served.model.runtime_reason,
        image_limits=ImageLimits(**images.model_dump(), media_types=media_types),
        max_body_bytes=settings.bodies.max_bytes,
        max_samples=MAX_SAMPLES,
        views=config.views,
        thresholds=config.thresholds,
        prediction_sets=tuple(
            _set_options(entry, served.model.classes) for entry in config.prediction_sets
        ),
        licence=served.licence,
        provenance=config.provenance,
        **{
            name: value
            for extension in extensions
            for name, value in extension.model_details(served).items()
        },
    )


def _set_options(
    calibration: PredictionSetCalibration, classes: Sequence[str]
) -> PredictionSetOptions:
    limits = zip(classes, calibration.thresholds, strict=True)
    return PredictionSetOptions(
        **calibration.model_dump(exclude={"thresholds", "units", "confidences", "data_sha256"}),
        units=dict(zip(classes, calibration.units, strict=True)),
        confidences=dict(zip(classes, calibration.confidences, strict=True)),
        always_included=tuple(name for name, limit in limits if limit == ALWAYS_INCLUDED),
    )


def probe_routes(lifecycle: Lifecycle) -> APIRouter:
    router = APIRouter(tags=[OPERATIONS])

    @router.get("/livez", responses=documented("livez", OPEN_PROBLEMS))
    async def livez() -> ServiceStatus:
        """Returns 200 while the process runs."""
        return ServiceStatus(status="alive")

    @router.get("/readyz", responses=documented("readyz", (*OPEN_PROBLEMS, NotReady)))
    async def readyz() -> ServiceStatus:
        """Returns 200 while requests with images are answered; otherwise 503 with the reason."""
        lifecycle.check_ready()
        return ServiceStatus(status="ready")

    return router


def metrics_routes(metrics: Metrics) -> APIRouter:
    """The route that Prometheus scrapes.

    Those of an address are answered one after another, at intervals: the route
    needs no key, and many scrapes must not take the event loop's time from predictions.
    """
    router = APIRouter(tags=[OPERATIONS])
    turns = ClientTurns()

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        # without OpenMetrics: clients in Java ask for all documented formats and read this one
        responses=documented("scrape", OPEN_PROBLEMS),
    )
    async def scrape(request: Request) -> Response:
        """Returns all metrics in the text format of Prometheus, or as OpenMetrics on request."""
        async with while_connected(request), turns.of(request.scope):
            await asyncio.sleep(_SCRAPE_INTERVAL_S)
        exposition = metrics.exposition(request.headers.get("Accept", ""))
        return Response(exposition.content, headers={"Content-Type": exposition.content_type})

    return router
