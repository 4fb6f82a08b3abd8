"""The HTTP application, built from explicit arguments."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service import problems
from service.model_routes import model_routes
from service.predict_routes import predict_routes
from service.probe_routes import Readiness, probe_routes
from service.request_id import RequestIdMiddleware
from service.served_model import ServedModels
from service.settings import ServiceSettings


def create_app(models: ServedModels, settings: ServiceSettings) -> FastAPI:
    """The application that serves `models`; their engines run while its lifespan does."""
    readiness = Readiness()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as running:
            for served in models.values():
                running.enter_context(served.running())
            readiness.ready = True
            try:
                yield
            finally:
                readiness.ready = False

    app = FastAPI(title="EulerLoRA", version=version("eulerlora"), lifespan=lifespan)
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    app.include_router(predict_routes(models, settings))
    app.include_router(model_routes(models, settings))
    app.include_router(probe_routes(readiness))
    return app
