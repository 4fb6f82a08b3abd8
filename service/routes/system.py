"""`GET /models`, `/models/{name}`, `/livez`, `/readyz` and `/metrics`."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from eulerlora.config import PredictionSetCalibration
from eulerlora.prediction_sets import ALWAYS_INCLUDED
from eulerlora_client.contract.models import (
    ClassName,
    ImageLimits,
    ModelDetails,
    ModelList,
    ModelShift,
    ModelSummary,
    PredictionSetOptions,
    ServiceStatus,
    Threshold,
)
from eulerlora_client.contract.problems import NotReady
from eulerlora_client.contract.sampling import MAX_SAMPLES
from service.http.problem_responses import documented_problems
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings
from service.telemetry.metrics import Metrics
from service.telemetry.shift_monitor import ShiftMonitors


def model_routes(
    models: ServedModels, settings: ServiceSettings, shift: ShiftMonitors
) -> APIRouter:
    """Returns the routes that describe the served models."""
    router = APIRouter()

    @router.get("/models", responses=documented_problems(401, 429))
    async def list_models() -> ModelList:
        """Returns the served models, the default first."""
        return ModelList(
            models=tuple(
                ModelSummary(
                    name=name,
                    revision=served.model.revision,
                    classes=tuple(served.model.classes),
                    default=name == models.default,
                )
                for name, served in models.items()
            )
        )

    @router.get("/models/{name}", responses=documented_problems(401, 404, 429))
    async def describe_model(name: str) -> ModelDetails:
        """Returns classes, limits, thresholds, shift and provenance of a model."""
        return model_details(models.named(name), settings, shift.states().get(name))

    return router


def model_details(
    served: ServedModel, settings: ServiceSettings, shift: ModelShift | None
) -> ModelDetails:
    """Returns the response body of `/models/{name}`."""
    config = served.model.config
    return ModelDetails(
        name=config.name,
        revision=served.model.revision,
        classes=tuple(
            ClassName(name=entry.name, description=entry.description) for entry in config.classes
        ),
        adapters=config.adapters.settings.adapters,
        input_size=config.preprocessing.size,
        image_limits=ImageLimits(**settings.images.model_dump()),
        max_body_bytes=settings.bodies.max_bytes,
        max_samples=MAX_SAMPLES,
        thresholds=tuple(Threshold(**entry.model_dump()) for entry in config.thresholds),
        prediction_sets=tuple(
            _set_options(entry, served.model.classes) for entry in config.prediction_sets
        ),
        shift=shift,
        provenance=config.provenance,
    )


def _set_options(
    calibration: PredictionSetCalibration, classes: Sequence[str]
) -> PredictionSetOptions:
    limits = zip(classes, calibration.thresholds, strict=True)
    return PredictionSetOptions(
        **calibration.model_dump(exclude={"thresholds", "units", "data_sha256"}),
        units=dict(zip(classes, calibration.units, strict=True)),
        always_included=tuple(name for name, limit in limits if limit == ALWAYS_INCLUDED),
    )


def probe_routes(lifecycle: Lifecycle) -> APIRouter:
    """Returns the liveness and readiness probes."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> ServiceStatus:
        """Returns 200 while the process runs."""
        return ServiceStatus(status="alive")

    @router.get("/readyz", responses=documented_problems(503))
    async def readyz() -> ServiceStatus:
        """Returns 200 while the models are loaded, verified and served."""
        if lifecycle.phase != "ready":
            raise NotReady("the models are not served")
        return ServiceStatus(status="ready")

    return router


def metrics_routes(metrics: Metrics) -> APIRouter:
    """Returns the route that Prometheus scrapes."""
    router = APIRouter()

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
    )
    async def scrape(request: Request) -> Response:
        """Returns all metrics in the text format of Prometheus, or as OpenMetrics on request."""
        exposition = metrics.exposition(request.headers.get("Accept", ""))
        return Response(exposition.content, headers={"Content-Type": exposition.content_type})

    return router
