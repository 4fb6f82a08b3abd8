"""`GET /livez` and `GET /readyz`."""

from dataclasses import dataclass

from fastapi import APIRouter

from service.errors import NotReady
from service.schemas import ProblemBody, Status


@dataclass
class Readiness:
    """Whether the models are warmed up and served."""

    ready: bool = False


def probe_routes(readiness: Readiness) -> APIRouter:
    """The routes that an orchestrator asks."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Status:
        """The process is alive."""
        return Status(status="alive")

    @router.get("/readyz", responses={503: {"model": ProblemBody}})
    async def readyz() -> Status:
        """The models are loaded, warmed up and served."""
        if not readiness.ready:
            raise NotReady("the models are not being served")
        return Status(status="ready")

    return router
