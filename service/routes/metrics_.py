"""`GET /metrics`."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from service.telemetry.metrics import Metrics


def metrics_routes(metrics: Metrics) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter()

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
    )
    async def scrape(request: Request) -> Response:
        """All metrics, in Prometheus' text format or in OpenMetrics where that is accepted."""
        try:
            encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        except TypeError:  # what it raises for a version that is no number
            encoder, content_type = choose_encoder("")
        return Response(encoder(metrics.registry), headers={"Content-Type": content_type})

    return router
