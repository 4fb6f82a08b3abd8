"""`GET /livez` and `GET /readyz`."""

from fastapi import APIRouter

from eulerlora_client.contract.problems import NotReady
from service.http.problem_responses import described
from service.lifecycle.phase import Lifecycle
from service.schemas import Status


def probe_routes(lifecycle: Lifecycle) -> APIRouter:
    """The routes that an orchestrator asks."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Status:
        """The process is alive."""
        return Status(status="alive")

    @router.get("/readyz", responses=described(503))
    async def readyz() -> Status:
        """The models are loaded, gave their known answers, and are served."""
        if lifecycle.phase != "ready":
            raise NotReady("the models are not being served")
        return Status(status="ready")

    return router
