"""The HTTP application, built from explicit arguments."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import compile_path
from starlette.types import Scope

from eulerlora.model import EulerLoRA
from eulerlora_contract.policy.policy import Policy, default_policy
from service.auth.access import KeyCheck, needs_key
from service.auth.keys import Keys
from service.decoding.slots import DecodingSlots
from service.fair_sharing import ClientQuota, client_of
from service.http.middleware import BodyLimits, Check, HeaderChecks, RequestMiddleware
from service.http.responses import add_problem_handlers
from service.inference.queue import RequestQueue
from service.inference.shadow import Shadow
from service.inference.workers import InferenceWorkers
from service.lifecycle.lifecycle import Lifecycle
from service.prediction import Pipeline
from service.routes.decisions import DECISIONS_PATH, MAX_DECISION_BYTES, decision_routes
from service.routes.openapi import API_KEY, DESCRIPTION, complete_openapi
from service.routes.page import PageFile, documentation_files, file_routes, page_files
from service.routes.plugins import (
    ServiceParts,
    load_plugins,
    plugin_paths,
)
from service.routes.predict import BATCH_PATH, EMBED_PATH, PREDICT_PATH, predict_routes
from service.routes.system import metrics_routes, model_routes, probe_routes
from service.routes.triage import (
    TRIAGE_BATCH_PATH,
    TRIAGE_PATH,
    policy_routes,
    triage_routes,
)
from service.settings import ServiceSettings
from service.telemetry.metrics import Gauges, Metrics
from service.telemetry.observation import PROBES, ObservationMiddleware
from service.telemetry.shift_monitor import ShiftMonitors

if TYPE_CHECKING:  # the OpenTelemetry SDK is imported only with --trace
    from opentelemetry.sdk.trace import TracerProvider


def create_app(
    lifecycle: Lifecycle,
    settings: ServiceSettings,
    *,
    keys: Keys | None = None,
    policy: Policy | None = None,
    hosts: Collection[str] | None = None,
    workers: int = 1,
    traces: "TracerProvider | None" = None,
) -> FastAPI:
    """The application, whose lifespan is that of the lifecycle; it runs once.

    Its state has `metrics`, which also count problems that never reach it.

    Args:
        lifecycle: Has the models, the decoders and the audit log.
        settings: The limits.
        keys: API keys that requests must present; without keys, requests of the pages of other
            sites are refused.
        policy: The triage policy; None for the packaged one.
        hosts: The names that requests may use for the service, None for all.
        workers: The number of batches that run at the same time (`worker_count`).
        traces: The provider of trace spans.

    Raises:
        SettingsError: For a plug-in that cannot be used.
    """
    models, policy = lifecycle.models, policy or default_policy()
    queue = RequestQueue(settings, workers)
    shift = ShiftMonitors(lambda: {name: served.model for name, served in models.items()})
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
            shift=shift.states(),
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
        DecodingSlots(settings.decoding.workers, settings.decoding.background_workers, quota),
        queue,
        shift,
        lifecycle.audit,
        shadow,
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
    plugins = load_plugins()
    add_problem_handlers(
        app,
        settings.overload_status,
        {one.prefix: one.problem_body for one in plugins.values() if one.problem_body is not None},
    )
    formats = {
        name: one for plugin in plugins.values() for name, one in plugin.triage_formats.items()
    }
    keyed = partial(app.include_router, dependencies=API_KEY if keys is not None else ())
    keyed(predict_routes(pipeline))
    keyed(triage_routes(pipeline, models, policy, formats))
    keyed(decision_routes(lifecycle.audit, policy, metrics, settings.deadline_s))
    keyed(policy_routes(policy))
    keyed(model_routes(models, settings, shift))
    app.include_router(probe_routes(lifecycle))
    app.include_router(metrics_routes(metrics))

    def read_page() -> Mapping[str, PageFile]:
        classes = models[models.default].model.classes
        return page_files(
            policy,
            classes,
            is_audited=lifecycle.audit is not None,
            reads_dicom=settings.images.dicom,
        )

    app.include_router(file_routes("/", "/page", read_page))
    app.include_router(file_routes("/docs", "/docs", documentation_files))
    parts = ServiceParts(pipeline, models, policy, lifecycle, settings)
    paths = [*app.openapi()["paths"], *filter(None, [app.openapi_url])]
    uploads = [PREDICT_PATH, BATCH_PATH, EMBED_PATH, TRIAGE_PATH, TRIAGE_BATCH_PATH]
    for name, plugin in plugins.items():
        uploads += plugin.uploads
        if plugin.routes is not None:
            router = plugin.routes(parts)
            paths += plugin_paths(name, router, paths)
            keyed(router)
    complete_openapi(app, {one.schema_name: one.schema for one in formats.values()})

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
        header_checks=HeaderChecks(hosts, keys is None),
        checks=[lifecycle.check_request, *checks],
        bodies=BodyLimits(
            settings.bodies,
            {
                **dict.fromkeys((BATCH_PATH, TRIAGE_BATCH_PATH), settings.bodies.max_batch_bytes),
                DECISIONS_PATH: MAX_DECISION_BYTES,
            },
        ),
        is_closing=lifecycle.is_closing,
    )
    app.add_middleware(ObservationMiddleware, metrics=metrics, paths=paths)
    if traces is not None:
        from service.telemetry.tracing import TracingMiddleware  # noqa: PLC0415

        app.add_middleware(TracingMiddleware, provider=traces)
    return app


def _properties(model: EulerLoRA) -> dict[str, str]:
    """What the metrics say of a model."""
    return {"revision": model.revision, "precision": model.precision}


def page_check(per_minute: int) -> Check:
    """Limits what a client may ask for without a key, except for probes."""
    quota = ClientQuota(per_minute, "requests for the page and the documentation")

    def check(scope: Scope) -> None:
        if not needs_key(scope["path"]) and scope["path"] not in PROBES:
            client = client_of(scope)
            quota.check(client, 1)
            quota.charge(client, 1)

    return check


def capacity_check(queue: RequestQueue, quota: ClientQuota, paths: Iterable[str]) -> Check:
    """Refuses requests with images of a client without capacity for a row.

    Under overload most requests end here, at minimal cost. The rows of an admitted request are
    reserved later, by `RequestQueue.reserve`, when they are known.

    Args:
        queue: Of the rows; Overloaded if it has no capacity for the client.
        quota: Of decoding time; QuotaExceeded if the client has used it up.
        paths: Templates of the paths of such requests, with parameters in braces.
    """
    patterns = [compile_path(path)[0] for path in paths]

    def check(scope: Scope) -> None:
        if any(pattern.match(scope["path"]) for pattern in patterns):
            client = client_of(scope)  # after the check of the key
            quota.check(client)
            queue.check_capacity(client)

    return check
