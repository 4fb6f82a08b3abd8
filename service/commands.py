"""The command `eulerlora serve`."""

import logging
import logging.config
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import uvicorn
from starlette.routing import Router

from eulerlora.checkpoint import read_config
from eulerlora.errors import SettingsError
from eulerlora.model import choose_device
from eulerlora.settings import PRECISIONS, Precision, RuntimeSettings
from eulerlora_client.policy.policy import read_policy
from service.app import Options, create_service
from service.audit.log import AuditLog, AuditSettings
from service.audit.secret import read_secret
from service.auth.exposure import check_exposure
from service.auth.keys import Keys
from service.http.protocol import MAX_HEADER_BYTES, protocol_of
from service.lifecycle.gate import Gate
from service.lifecycle.loading import load_checked
from service.lifecycle.loading_thread import still_loading
from service.lifecycle.phase import Lifecycle
from service.lifecycle.server import Server
from service.lifecycle.supervisor import Parts, Supervisor
from service.settings import ServiceSettings, settings_of_environment
from service.telemetry.logs import CHOICES, LogChoice, LogSettings, log_config

if TYPE_CHECKING:  # the SDK is imported only where traces are wanted
    from opentelemetry.sdk.trace import TracerProvider

EMBEDDED = Path(__file__).parent / "default"
BACKLOG = 2048
COMPILING_S = 600.0  # that a pass may take which has to be compiled first
PATH = click.Path(path_type=Path)

logger = logging.getLogger(__name__)


@click.command("serve")
@click.argument("checkpoints", nargs=-1, type=PATH, metavar="[CHECKPOINT ...]")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the network; starts slower.")
@click.option("--keys", type=PATH, help="The clients' keys, as `eulerlora keys new` makes them.")
@click.option("--open", "open_to_all", is_flag=True, help="Serve others without keys.")
@click.option("--audit", type=PATH, help="Record every decision in this file, or refuse it.")
@click.option("--audit-secret", type=PATH, help="The secret of the audit log's image hashes.")
@click.option("--policy", type=PATH, help="Triage by this policy, not by the packaged one.")
@click.option("--log-format", type=click.Choice(CHOICES), default="auto", show_default=True)
@click.option("--trace", is_flag=True, help="Send traces to the collector of OTEL_EXPORTER_*.")
@click.option("--drain-s", type=click.FloatRange(min=0), help="Still accept after SIGTERM.")
def serve_command(
    checkpoints: tuple[Path, ...],
    host: str,
    port: int,
    device: str,
    precision: Precision,
    compiled: bool,
    keys: Path | None,
    open_to_all: bool,
    audit: Path | None,
    audit_secret: Path | None,
    policy: Path | None,
    log_format: LogChoice,
    trace: bool,
    drain_s: float | None,
) -> None:
    """Answer HTTP requests with one or more checkpoints, or with the embedded one.

    Limits are set by environment variables, EULERLORA_SERVE_*; docs/service.md lists them.
    SIGHUP reads the checkpoints again.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _exit_cleanly)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing has been read that could be read again
    settings = chosen_settings(drain_s, compiled)
    logging.config.dictConfig(log_config(LogSettings(format=log_format).format_for(sys.stderr)))
    warning = check_exposure(host, keys is not None, open_to_all)
    if warning is not None:
        logger.warning("%s", warning)
    runtime = RuntimeSettings(precision=precision, compiler="inductor" if compiled else None)
    load = partial(load_checked, device=choose_device(device), runtime=runtime)
    folders = checkpoints or (EMBEDDED,)
    check_names(folders)
    with ExitStack() as running:
        listening = running.enter_context(listen(host, port))
        options = Options(
            keys=None if keys is None else Keys(keys),
            audit=None if audit is None else open_log(audit, audit_secret),
            traces=running.enter_context(traces()) if trace else None,
            policy=None if policy is None else read_policy(policy),
        )
        address = f"http://{host}:{listening.getsockname()[1]}"
        lifecycle = Lifecycle()
        parts = Parts(
            load=load,
            serve=lambda models: create_service(models, settings, lifecycle, options),
            on_ready=lambda models: click.echo(
                f"serving {', '.join(models)} on {address}", err=True
            ),
        )
        serve(folders, parts, settings, lifecycle, listening)
    _end(lifecycle)


def chosen_settings(drain_s: float | None, compiled: bool) -> ServiceSettings:
    """The environment's settings with those of the command line. Raises SettingsError."""
    settings = settings_of_environment()
    life = settings.life
    if drain_s is not None:
        life = life.model_copy(update={"drain_s": drain_s})
    longest_s = max(settings.max_batch_s, COMPILING_S if compiled else 0)
    return settings.model_copy(update={"life": life, "max_batch_s": longest_s})


def serve(
    folders: Sequence[Path],
    parts: Parts,
    settings: ServiceSettings,
    lifecycle: Lifecycle,
    listening: socket.socket,
) -> None:
    """Serves the checkpoints in `folders` on a socket until the lifecycle has ended."""
    gate = Gate(lifecycle)
    supervisor = Supervisor(folders, parts, gate, lifecycle, settings.life)
    config = uvicorn.Config(
        Router(default=gate, lifespan=supervisor.running),
        http=protocol_of(settings.connections, gate.refused),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    Server(config, lifecycle, settings.life).run([listening])


def open_log(file: Path, secret_file: Path | None) -> AuditLog:
    """The audit log in a file. Raises SettingsError without a secret, and as AuditLog."""
    settings = AuditSettings(file=file, secret_file=secret_file)
    return AuditLog(settings, read_secret(secret_file, os.environ))


def traces() -> "AbstractContextManager[TracerProvider]":
    """Returns `tracing.exported_traces`; imports the OpenTelemetry SDK on first use."""
    from service.telemetry.tracing import exported_traces  # noqa: PLC0415

    return exported_traces()


def check_names(folders: Iterable[Path]) -> None:
    """Raises SettingsError where two checkpoints have the same name, before either is loaded."""
    names = Counter(read_config(folder).name for folder in folders)
    for name, count in names.items():
        if count > 1:
            raise SettingsError(f"two checkpoints have the name {name}; give each its own")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingsError where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _end(lifecycle: Lifecycle) -> None:
    """The process's end: clean, or with the reason why not. Raises ClickException."""
    if still_loading():  # at its end the interpreter would crash or wait
        if lifecycle.failure is not None:
            click.echo(f"eulerlora: {lifecycle.failure}", err=True)
        logging.shutdown()
        os._exit(0 if lifecycle.failure is None else 1)
    if lifecycle.failure is not None:
        raise click.ClickException(lifecycle.failure)


def _exit_cleanly(*_: object) -> NoReturn:
    """For a signal that comes before the server handles it."""
    sys.exit(0)
