"""The server process: builds what `eulerlora serve` runs, serves, and ends with an exit status."""

import logging
import logging.config
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvicorn
from fastapi import FastAPI

from eulerlora.checkpoint.signature import verifier
from eulerlora.model import choose_device
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import PrecisionChoice, RuntimeChoice
from eulerlora_contract.settings import validated
from service.app import create_app
from service.auth.keys import Keys
from service.decoding.pool import DecoderPool
from service.extensions import load_extensions
from service.http.protocol import protocol_of
from service.http.server import BACKLOG, Address, server_config
from service.inference.engine import ServedModel
from service.inference.workers import worker_count
from service.lifecycle.lifecycle import Lifecycle
from service.lifecycle.loading import CheckpointSource
from service.settings import (
    STOP_MARGIN_S,
    LifeSettings,
    ServiceSettings,
    check_consistency,
    settings_of_environment,
)
from service.telemetry.logs import LogChoice, log_config, log_format
from service.telemetry.stderr import exit_now

if TYPE_CHECKING:  # the OpenTelemetry SDK is imported only with --trace
    from opentelemetry.sdk.trace import TracerProvider

_COMPILED_PASS_S = 1800.0
"""Minimum limit on the time of a pass of a compiled network, whose first pass compiles it for all
row counts.
"""
_SWITCH_INTERVAL_S = 0.0005
"""After which a thread asks another for the interpreter's lock. A pass needs it again after every
operation: at Python's 5 ms, an event loop that reads uploads makes passes several times as long.
"""
_NON_COMMERCIAL = re.compile(r"cc-by-nc[a-z0-9.-]*")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """The arguments of `eulerlora serve`.

    Attributes:
        checkpoints: As of `CheckpointSource.of`.
        shadow: Likewise; its name is that of the model that it is compared with.
        compiled: Compile the network.
        keys: The key file.
        open_to_all: Serve other hosts without keys.
        extensions: Their options, by the name of the extension.
        require_signature: The public key that must have signed every checkpoint; None for none.
        trace: Export traces.
        drain_s: Overrides the setting LIFE__DRAIN_S.
        require_sandbox: Refuse to start if the kernel does not restrict decoders fully.
    """

    checkpoints: tuple[str, ...]
    shadow: str | None
    host: str
    port: int
    device: str
    precision: PrecisionChoice
    runtime: RuntimeChoice
    compiled: bool
    keys: Path | None
    open_to_all: bool
    require_signature: Path | None
    log_format: LogChoice
    trace: bool
    drain_s: float | None
    require_sandbox: bool
    extensions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def run(options: ServeOptions) -> NoReturn:
    """Serves until a signal or a failure, then ends the process, with status 1 after a failure.

    Raises:
        SettingsError: For options that do not work together, and an address or device that this
            machine does not have.
        HubError: For a repository that cannot be downloaded.
        EulerLoRAError: Of an extension, such as PolicyError for an invalid policy file.
    """
    settings = effective_settings(options.drain_s, options.compiled)
    chosen_format = log_format(options.log_format, sys.stderr)
    logging.config.dictConfig(log_config(chosen_format))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # A collector reads records only.
    announce = logger.info if chosen_format == "json" else partial(click.echo, err=True)
    with ExitStack() as resources:
        traces = None
        if options.trace:
            from service.telemetry.tracing import exported_traces  # noqa: PLC0415 - imports the SDK

            traces = resources.enter_context(exported_traces())
        lifecycle, app = service_of(options, settings, traces)
        listener = resources.enter_context(Address(options.host, options.port).listen())
        url = Address(options.host, listener.getsockname()[1]).url
        lifecycle.on_ready = lambda: announce(f"serving {described(lifecycle.models)} on {url}")
        protocol = protocol_of(settings.connections, app.state.metrics.count_problem)
        config = server_config(app, protocol, settings.trusted_proxies)
        _Server(config, lifecycle, settings.life).run([listener])
    _exit(lifecycle)


def service_of(
    options: ServeOptions,
    settings: ServiceSettings,
    traces: "TracerProvider | None" = None,
    waits: bool = False,
) -> tuple[Lifecycle, FastAPI]:
    """The application that serves the checkpoints, and its lifecycle.

    Logs a warning if the service needs no keys. `traces`: as in `create_app`. `waits`: as in
    `Lifecycle`.

    Raises:
        SettingsError: As `run`.
        EulerLoRAError: As `run`.
    """
    has_keys = options.keys is not None
    address = Address(options.host, options.port)
    warning = address.check_exposure(has_keys, options.open_to_all)
    if warning is not None:
        logger.warning("%s", warning)
    device = choose_device(options.device)
    if options.compiled and options.shadow is not None:
        raise SettingsError("expected at most one of --compile and --shadow, got both")
    compiler = "inductor" if options.compiled else None
    sources = [CheckpointSource.of(text) for text in options.checkpoints]
    shadow = None if options.shadow is None else CheckpointSource.of(options.shadow)
    for source in filter(None, (*sources, shadow)):
        if not source.folder.is_dir():  # before the server starts
            raise CheckpointError(source.folder, "there is no such folder")
    key = options.require_signature
    verify = None if key is None else verifier(key)
    lifecycle = Lifecycle(
        settings,
        sources=sources,
        shadow_source=shadow,
        load=partial(
            CheckpointSource.load,
            device=options.device,
            precision=options.precision,
            compiler=compiler,
            verify=verify,
            runtime=options.runtime,
        ),
        extensions=load_extensions(options.extensions),
        decoder=DecoderPool(
            settings.images, settings.decoding, require_sandbox=options.require_sandbox
        ),
        waits=waits,
    )
    return lifecycle, create_app(
        lifecycle,
        settings,
        keys=None if options.keys is None else Keys(options.keys),
        hosts=address.allowed_hosts(has_keys, settings.allowed_hosts),
        workers=worker_count(device, compiler),
        traces=traces,
    )


class _Server(uvicorn.Server):
    """Stops at the first SIGTERM or SIGINT, or when the lifecycle is stopping.

    The server accepts requests for the drain time (not after a failure); then uvicorn stops
    listening, completes the accepted requests and ends the application's lifespan. It cancels
    requests that are not complete shortly before the grace time has passed, which
    `check_consistency` excludes for accepted ones. A second signal ends the process at once. A
    timer ends the process if the shutdown is not complete after the grace time.
    """

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, settings: LifeSettings
    ) -> None:
        complete_s = max(0, settings.grace_s - settings.drain_s - STOP_MARGIN_S)
        config.timeout_graceful_shutdown = complete_s  # type: ignore[assignment]  # floats work too
        super().__init__(config)
        self._lifecycle = lifecycle
        self._settings = settings
        self._signalled = False
        self._drain_ends: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has set it to the number accepted at once

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        if self._signalled:
            exit_now(128 + sig)
        self._signalled = True
        self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """True if the server should stop; uvicorn calls it ten times per second."""
        if self._lifecycle.phase == "stopping":
            if self._drain_ends is None:
                self._drain_ends = time.monotonic() + self._settings.drain_s
                forced_exit = threading.Timer(self._settings.grace_s, self._force_exit)
                forced_exit.daemon = True
                forced_exit.start()
            if self._lifecycle.failure is not None or time.monotonic() >= self._drain_ends:
                self.should_exit = True
        return await super().on_tick(counter)

    def _force_exit(self) -> NoReturn:
        self._lifecycle.fail("the shutdown did not complete in time")
        _exit(self._lifecycle)


def described(models: Mapping[str, ServedModel]) -> str:
    """The names of the models; one whose licence forbids commercial use, with it."""
    return ", ".join(
        f"{name} ({served.licence}: no commercial use)"
        if _NON_COMMERCIAL.fullmatch(served.licence or "")
        else name
        for name, served in models.items()
    )


def effective_settings(drain_s: float | None = None, compiled: bool = False) -> ServiceSettings:
    """The settings of the environment, overridden by the command line.

    Raises:
        SettingsError: For an invalid setting, and for settings that cannot work together.
    """
    settings = settings_of_environment()
    life = settings.life
    if drain_s is not None:
        life = validated(LifeSettings, {**life.model_dump(), "drain_s": drain_s})
    max_batch_s = max(settings.max_batch_s, _COMPILED_PASS_S if compiled else 0)
    effective = settings.model_copy(update={"life": life, "max_batch_s": max_batch_s})
    check_consistency(effective)
    return effective


def _exit(lifecycle: Lifecycle) -> NoReturn:
    """Ends the process; after a failure with status 1 and the reason.

    The interpreter's own exit would free the objects of torch for seconds, and crash or wait if a
    thread still loads a model.
    """
    if lifecycle.failure is not None:
        reason = printable(" ".join(lifecycle.failure.split()), sys.stderr.encoding)
        print(f"eulerlora: {reason}", file=sys.stderr)
    exit_now(0 if lifecycle.failure is None else 1)
