"""`GET /livez` and `GET /readyz`."""

from fastapi import APIRouter

from eulerlora_client.contract.models import ServiceStatus
from eulerlora_client.contract.problems import NotReady
from service.http.problem_responses import described
from service.lifecycle.phase import Lifecycle


def probe_routes(lifecycle: Lifecycle) -> APIRouter:
    """The routes that an orchestrator asks."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> ServiceStatus:
        """The process is alive."""
        return ServiceStatus(status="alive")

    @router.get("/readyz", responses=described(503))
    async def readyz() -> ServiceStatus:
        """The models are loaded, gave their known answers, and are served."""
        if lifecycle.phase != "ready":
            raise NotReady("the models are not being served")
        return ServiceStatus(status="ready")

    return router
