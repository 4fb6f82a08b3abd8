"""The HTTP application, built from explicit arguments."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from torch import Tensor

from eulerlora_contract.policy.policy import Policy, default_policy
from service.audit.log import AuditLog
from service.auth.access import KeyCheck
from service.auth.keys import Keys
from service.decoding.pool import DecoderPool
from service.decoding.slots import DecodingQuota, DecodingSlots
from service.http.middleware import (
    AdmissionCheck,
    BodyLimits,
    HeaderChecks,
    HostRules,
    RequestMiddleware,
)
from service.http.responses import add_problem_handlers
from service.inference.engine import InferenceItem, ServedModel, ServedModels
from service.inference.queue import RequestQueue, ThroughputEstimate
from service.inference.workers import InferenceWorkers
from service.lifecycle.phase import Lifecycle
from service.lifecycle.supervisor import Service
from service.prediction.pipeline import Pipeline
from service.routes.openapi import API_KEY, DESCRIPTION, complete_openapi
from service.routes.page import documentation_files, file_routes, page_files
from service.routes.plugins import (
    Plugin,
    ServiceParts,
    load_plugins,
    plugin_paths,
    problem_bodies,
)
from service.routes.predict import BATCH_PATH, PREDICT_PATH, predict_routes
from service.routes.system import Readiness, metrics_routes, model_routes, probe_routes
from service.routes.triage import (
    TRIAGE_BATCH_PATH,
    TRIAGE_PATH,
    ReportWriter,
    policy_routes,
    report_routes,
    triage_routes,
)
from service.settings import ServiceSettings
from service.telemetry.logs import RequestIdMiddleware
from service.telemetry.metrics import Gauges, Metrics
from service.telemetry.observation import (
    ObservationMiddleware,
    record_prediction,
    served_paths,
)
from service.telemetry.shift_monitor import ShiftMonitors

if TYPE_CHECKING:  # the OpenTelemetry SDK is imported only with --trace
    from opentelemetry.sdk.trace import TracerProvider


@dataclass(frozen=True)
class Options:
    """Optional parts of the service.

    Attributes:
        keys: API keys that requests must present; without keys, requests of the pages of other
            sites are refused.
        audit: The log of decisions.
        traces: The provider of trace spans.
        policy: The triage policy.
        hosts: The names that requests may use for the service, None for all.
        decoder: One whose start may have begun; None for a new one.
        plugins: None for those of the installed distributions.
    """

    keys: Keys | None = None
    audit: AuditLog | None = None
    traces: "TracerProvider | None" = None
    policy: Policy = field(default_factory=default_policy)
    hosts: frozenset[str] | None = None
    decoder: DecoderPool | None = None
    plugins: Mapping[str, Plugin] | None = None


def create_service(
    models: ServedModels,
    settings: ServiceSettings,
    lifecycle: Lifecycle,
    options: Options = Options(),
) -> Service:
    """Returns the service for `models`; a lost device is reported to the lifecycle."""
    workers = min(served.workers for served in models.values())
    queue = RequestQueue(settings, workers, ThroughputEstimate())
    shift = ShiftMonitors(lambda: {name: served.model for name, served in models.items()})
    decoder = options.decoder or DecoderPool(settings.images, settings.decoding)
    readiness = Readiness(lifecycle, decoder, options.audit)
    metrics = _create_metrics(models, queue, readiness, shift)
    inference = InferenceWorkers(
        queue,
        settings.max_batch_s,
        metrics.count_batch,
        lambda error: lifecycle.fail(str(error)),
        workers,
    )
    quota = DecodingQuota(settings.decoding.client_s_per_minute)
    pipeline = Pipeline(
        models,
        settings,
        decoder,
        DecodingSlots(settings.decoding.workers, quota),
        queue,
        shift,
        record_prediction,
        metrics.count_problem,
        options.audit,
    )

    lifespan = _lifespan(decoder, inference, options.audit)
    app = FastAPI(
        **DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would send key and image to what Host names
    )
    plugins = load_plugins() if options.plugins is None else options.plugins
    add_problem_handlers(app, settings.overload_status, problem_bodies(plugins))
    policy = options.policy
    formats = {
        name: one for plugin in plugins.values() for name, one in plugin.triage_formats.items()
    }
    keyed = partial(app.include_router, dependencies=API_KEY if options.keys is not None else ())
    keyed(predict_routes(pipeline))
    keyed(triage_routes(pipeline, models, policy, formats))
    keyed(policy_routes(policy))
    keyed(report_routes(ReportWriter(policy, settings)))
    keyed(model_routes(models, settings, shift))
    app.include_router(probe_routes(readiness))
    app.include_router(metrics_routes(metrics))
    classes = models[models.default].model.classes
    page = page_files(policy, classes, options.audit is not None)
    app.include_router(file_routes("/", "/page", page))
    app.include_router(file_routes("/docs", "/docs", documentation_files()))
    parts = ServiceParts(pipeline, models, policy, readiness, settings)
    paths = list(served_paths(app))
    for name, plugin in plugins.items():
        if plugin.routes is not None:
            router = plugin.routes(parts)
            paths += plugin_paths(name, router, paths)
            keyed(router)
    complete_openapi(app, {one.schema_name: one.schema for one in formats.values()})
    uploads = tuple(path for plugin in plugins.values() for path in plugin.uploads)
    _add_middlewares(app, settings, queue, quota, metrics, options, paths, uploads)

    max_rows_per_pass = max(served.max_rows_per_pass for served in models.values())
    batch_rows = min(settings.max_batch_rows, max_rows_per_pass)
    return Service(app, partial(_infer, inference), batch_rows, metrics.count_problem)


async def _infer(inference: InferenceWorkers, served: ServedModel, item: InferenceItem) -> Tensor:
    future = inference.submit(served, item, deadline=math.inf)
    return (await asyncio.wrap_future(future)).output.log_probabilities


def _create_metrics(
    models: ServedModels, queue: RequestQueue, readiness: Readiness, shift: ShiftMonitors
) -> Metrics:
    return Metrics(
        Gauges(
            ready=lambda: readiness.fault() is None,
            queue_rows=lambda: queue.rows,
            queue_items=lambda: queue.items,
            revisions=lambda: {name: served.revision for name, served in models.items()},
            precisions=lambda: {name: served.model.precision for name, served in models.items()},
            shift=shift.states,
        )
    )


def _lifespan(
    decoder: DecoderPool, inference: InferenceWorkers, audit: AuditLog | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Returns the lifespan that starts and stops the decoder, the audit log and the workers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as running:
            running.callback(decoder.close)
            await decoder.start()
            if audit is not None:
                running.enter_context(audit)
            running.enter_context(inference.running())
            yield

    return lifespan


def _add_middlewares(
    app: FastAPI,
    settings: ServiceSettings,
    queue: RequestQueue,
    quota: DecodingQuota,
    metrics: Metrics,
    options: Options,
    paths: Sequence[str],
    uploads: Sequence[str],
) -> None:
    """Adds the middlewares, innermost first.

    `paths`: templates of all paths. `uploads`: of those of plug-ins whose requests hold an image.
    """
    batches = dict.fromkeys((BATCH_PATH, TRIAGE_BATCH_PATH), settings.bodies.max_batch_bytes)
    uploads = (PREDICT_PATH, BATCH_PATH, TRIAGE_PATH, TRIAGE_BATCH_PATH, *uploads)
    keys = [] if options.keys is None else [KeyCheck(options.keys)]
    rules = HostRules(options.hosts, same_origin=options.keys is None)
    app.add_middleware(
        RequestMiddleware,
        header_checks=HeaderChecks(settings.connections, rules),
        checks=[*keys, AdmissionCheck(queue, quota, uploads)],
        bodies=BodyLimits(settings.bodies, batches),
    )
    app.add_middleware(ObservationMiddleware, metrics=metrics, paths=paths)
    if options.traces is not None:
        from service.telemetry.tracing import TracingMiddleware  # noqa: PLC0415

        app.add_middleware(TracingMiddleware, provider=options.traces)
    app.add_middleware(RequestIdMiddleware)
