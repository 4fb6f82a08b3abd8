"""The HTTP application, built from explicit arguments."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from eulerlora.inference import InferenceModel
from service.admission import capacity_check, page_check
from service.auth.access import KeyCheck
from service.auth.keys import Keys
from service.decoding.slots import DecodingSlots
from service.extensions import Service, route_paths
from service.fair_sharing import ClientQuota
from service.http.middleware import RequestMiddleware
from service.http.responses import add_problem_handlers
from service.inference.queue import RequestQueue
from service.inference.workers import InferenceWorkers
from service.lifecycle.lifecycle import Lifecycle
from service.prediction import Pipeline
from service.routes.files import documentation_files, file_routes
from service.routes.openapi import DESCRIPTION, complete_openapi
from service.routes.predict import BATCH_PATH, EMBED_PATH, PREDICT_PATH, predict_routes
from service.routes.system import metrics_routes, model_routes, probe_routes
from service.settings import ServiceSettings
from service.shadow import Shadow
from service.telemetry.metrics import Gauges, Metrics
from service.telemetry.observation import ObservationMiddleware

if TYPE_CHECKING:  # the OpenTelemetry SDK is imported only with --trace
    from opentelemetry.sdk.trace import TracerProvider


def create_app(
    lifecycle: Lifecycle,
    settings: ServiceSettings,
    *,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
    workers: int = 1,
    traces: "TracerProvider | None" = None,
) -> FastAPI:
    """The application, whose lifespan is that of the lifecycle; it runs once.

    Its state has `metrics`, which also count problems that never reach it.

    Args:
        lifecycle: Has the models, the decoders and the extensions.
        settings: The limits.
        keys: API keys that requests must present; without keys, requests of the pages of other
            sites are refused.
        hosts: The names that requests may use for the service, None for all.
        workers: The number of batches that run at the same time (`worker_count`).
        traces: The provider of trace spans.

    Raises:
        SettingsError: For an extension with a path that is taken.
    """
    models, extensions = lifecycle.models, lifecycle.extensions
    queue = RequestQueue(settings, workers)
    metrics = Metrics(
        lambda: Gauges(
            ready=lifecycle.fault is None,
            last_reload_successful=lifecycle.last_reload_successful,
            queue_rows=queue.rows,
            queue_items=queue.items,
            models={name: _properties(served.model) for name, served in models.items()},
            shadow={
                one.served.name: _properties(one.model) for one in filter(None, [lifecycle.shadow])
            },
            sandbox=lifecycle.decoder.sandbox.mechanisms,
        )
    )
    inference = InferenceWorkers(
        queue,
        settings.max_batch_s,
        on_batch=lambda batch, seconds: metrics.count_batch(
            batch.served.name, batch.rows, len(batch.tickets), seconds
        ),
        on_fatal=lambda error: lifecycle.fail(str(error)),
        workers=workers,
    )
    shadow = Shadow(
        lambda: None if lifecycle.shadow is None else lifecycle.shadow.served, queue, metrics
    )
    quota = ClientQuota(settings.decoding.client_s_per_minute, "s of image decoding")
    pipeline = Pipeline(
        models,
        settings,
        lifecycle.decoder,
        DecodingSlots(settings.decoding.decoders, quota),
        queue,
        [*extensions.values(), shadow],
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with shadow.running():
            async with lifecycle.running(inference):
                yield

    app = FastAPI(
        **DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would send key and image to what Host names
    )
    app.state.metrics = metrics
    add_problem_handlers(
        app,
        settings.overload_status,
        {one.prefix: one.problem_body for one in extensions.values() if one.problem_body},
    )
    app.include_router(predict_routes(pipeline))
    app.include_router(model_routes(models, settings, extensions.values()))
    app.include_router(probe_routes(lifecycle))
    app.include_router(metrics_routes(metrics))
    app.include_router(file_routes("/docs", "/docs", documentation_files))
    service = Service(pipeline, models, settings, metrics.registry, lifecycle.check_ready)
    paths = [*app.openapi()["paths"], *filter(None, [app.openapi_url])]
    uploads = [PREDICT_PATH, BATCH_PATH, EMBED_PATH]
    body_limits = {BATCH_PATH: settings.bodies.max_batch_bytes}
    for name, extension in extensions.items():
        uploads += extension.uploads
        body_limits |= extension.body_limits(settings)
        router = extension.routes(service)
        if router is not None:
            paths += route_paths(name, router, paths)
            app.include_router(router)
    schemas = {name: one for each in extensions.values() for name, one in each.schemas.items()}
    complete_openapi(app, schemas, has_keys=keys is not None)

    # The middlewares, innermost first
    checks = [
        page_check(settings.page_requests_per_minute),
        capacity_check(queue, quota, uploads),
    ]
    if keys is not None:
        key_check = KeyCheck(keys)
        checks = [key_check, *checks, key_check.count]
    app.add_middleware(
        RequestMiddleware,
        hosts=hosts,
        same_origin=keys is None,
        checks=[lifecycle.check_request, *checks],
        bodies=settings.bodies,
        max_bytes_by_path=body_limits,
        is_closing=lifecycle.is_closing,
    )
    app.add_middleware(ObservationMiddleware, metrics=metrics, paths=paths)
    if traces is not None:
        from service.telemetry.tracing import TracingMiddleware  # noqa: PLC0415

        app.add_middleware(TracingMiddleware, provider=traces)
    return app


def _properties(model: InferenceModel) -> dict[str, str]:
    """What the metrics say of a model."""
    return {
        "revision": model.revision,
        "precision": model.precision,
        "runtime": model.runtime.name,
    }
