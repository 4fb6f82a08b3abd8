"""The service as an application of Ray Serve: `serve deploy serve.yaml`.

Each replica is what `eulerlora serve` runs behind its socket: the same application, with its own
queue and batches. Ray counts requests, the queue counts rows. So a replica accepts as many requests
as Ray sends, and refuses in its own way those that it cannot run.
"""

import logging.config
from pathlib import Path

import httpx
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from starlette.types import ASGIApp

from eulerlora.commands import DEFAULT_NAME, configure_openmp
from eulerlora_contract.sampling import AUTO, PrecisionChoice, RuntimeChoice
from eulerlora_contract.settings import Settings

NAME = "eulerlora"
_EVERY_ADDRESS = "0.0.0.0"  # that of Ray's proxies in serve.yaml
_MAX_ONGOING_REQUESTS = 1024
"""Requests in a replica; more than a server has connections: the service refuses, not Ray."""
_ONGOING_REQUESTS = 8
"""Requests in a replica, on average, above which a replica is added."""


class Arguments(Settings):
    """Options of every replica, as those of `eulerlora serve`; paths of its machine.

    Attributes:
        checkpoints: Empty for the embedded one.
    """

    checkpoints: tuple[str, ...] = ()
    device: str = "auto"
    precision: PrecisionChoice = AUTO
    runtime: RuntimeChoice = AUTO
    keys: Path | None = None
    open_to_all: bool = False
    policy: Path | None = None
    require_signature: Path | None = None


def build(arguments: Arguments) -> Application:
    """The application; serve.yaml names this function and its arguments."""
    # These import torch.
    from service.process import effective_settings  # noqa: PLC0415
    from service.telemetry.logs import log_config  # noqa: PLC0415

    life = effective_settings(drain_s=0.0, compiled=False).life

    def replica() -> ASGIApp:
        logging.config.dictConfig(log_config("json"))  # in the log files of Ray
        return _create_replica(arguments)

    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        autoscaling_config=AutoscalingConfig(target_ongoing_requests=_ONGOING_REQUESTS),
        health_check_period_s=life.probe_interval_s,
        health_check_timeout_s=life.probe_timeout_s,
        graceful_shutdown_timeout_s=life.grace_s,
    )
    return deployment(serve.ingress(replica)(_Replica)).bind()


class _Replica:
    """A process with a service; Ray replaces it when `check_health` fails."""

    app: ASGIApp

    async def check_health(self) -> None:
        """Asks /readyz.

        Raises:
            RuntimeError: Unless it answers 200.
        """
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as probe:
            response = await probe.get("/readyz")
        if response.status_code != 200:
            raise RuntimeError(f"/readyz: expected status 200, got {response.status_code}")


def _create_replica(arguments: Arguments) -> FastAPI:
    """The service, whose lifespan waits until it is ready.

    It raises RuntimeError if a model cannot be loaded or fails its checks.
    """
    configure_openmp()
    from service.process import (  # noqa: PLC0415 - imports torch
        ServeOptions,
        effective_settings,
        service_of,
    )

    options = ServeOptions(
        checkpoints=arguments.checkpoints or (DEFAULT_NAME,),
        shadow=None,  # its comparisons are metrics, which are those of one replica
        host=_EVERY_ADDRESS,
        port=0,  # Ray's proxies listen
        device=arguments.device,
        precision=arguments.precision,
        runtime=arguments.runtime,
        compiled=False,
        keys=arguments.keys,
        open_to_all=arguments.open_to_all,
        require_signature=arguments.require_signature,
        log_format="json",
        trace=False,
        drain_s=0.0,  # Ray stops sending requests before it stops a replica
        require_sandbox=False,
        # No audit log: its lines form one chain, written by one process.
        extensions={"clinic": {"policy": arguments.policy}},
    )
    settings = effective_settings(drain_s=0.0, compiled=False)
    _, app = service_of(options, settings, waits=True)
    return app
