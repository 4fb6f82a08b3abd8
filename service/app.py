"""The HTTP application, built from explicit arguments."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service import problems
from service.batcher import Batcher
from service.model_routes import model_routes
from service.pipeline import Pipeline
from service.predict_routes import predict_routes
from service.probe_routes import Readiness, probe_routes
from service.request_id import RequestIdMiddleware
from service.served_model import ServedModels
from service.settings import ServiceSettings


def create_app(models: ServedModels, settings: ServiceSettings) -> FastAPI:
    """The application that serves `models`; they answer while its lifespan runs."""
    readiness = Readiness()

    def unready(_: Exception) -> None:
        readiness.ready = False

    batcher = Batcher(settings, ran=lambda _: None, on_fatal=unready)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for served in models.values():
            served.engine.warm_up()
        with batcher.running():
            readiness.ready = True
            yield
            readiness.ready = False

    app = FastAPI(title="EulerLoRA", version=version("eulerlora"), lifespan=lifespan)
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    app.include_router(predict_routes(Pipeline(models, settings, batcher)))
    app.include_router(model_routes(models, settings))
    app.include_router(probe_routes(readiness))
    return app
