"""The command `eulerlora serve`."""

import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import uvicorn
from starlette.routing import Router
from torch import Tensor

from eulerlora.checkpoint import read_config
from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.settings import PRECISIONS, Precision, RuntimeSettings
from service.app import create_app
from service.checked_model import load_checked
from service.engine import Question
from service.gate import Gate
from service.lifecycle import Lifecycle, LifeSettings
from service.loading_thread import still_loading
from service.served_model import ServedModel, ServedModels
from service.server import Server
from service.settings import ServiceSettings
from service.supervisor import Parts, Supervisor

EMBEDDED = Path(__file__).parent / "default"
BACKLOG = 2048


@click.command("serve")
@click.argument(
    "checkpoints", nargs=-1, type=click.Path(path_type=Path), metavar="[CHECKPOINT ...]"
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the network; starts slower.")
def serve_command(
    checkpoints: tuple[Path, ...],
    host: str,
    port: int,
    device: str,
    precision: Precision,
    compiled: bool,
) -> None:
    """Answer HTTP requests with one or more checkpoints, or with the embedded one."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _exit_cleanly)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing has been read that could be read again
    settings, life = ServiceSettings(), LifeSettings()
    runtime = RuntimeSettings(precision=precision, compiler="inductor" if compiled else None)
    load = partial(load_checked, device=choose_device(device), runtime=runtime)
    folders = checkpoints or (EMBEDDED,)
    check_names(folders)
    lifecycle = Lifecycle()
    with listen(host, port) as listening, ExitStack() as running:
        address = f"http://{host}:{listening.getsockname()[1]}"

        def serve(model: EulerLoRA) -> ServedModel:
            served = ServedModel(model, settings.max_batch_rows)
            if lifecycle.phase == "ready":  # before that the application starts it
                running.enter_context(served.running())
            return served

        async def ask(served: ServedModel, question: Question) -> Tensor:
            return (await served.answer(question)).answer

        parts = Parts(
            load=load,
            serve=serve,
            application=lambda models: create_app(models, settings),
            ask=ask,
            replace=ServedModels.replace,
            on_ready=lambda models: click.echo(
                f"serving {', '.join(models)} on {address}", err=True
            ),
        )
        gate = Gate(lifecycle)
        supervisor = Supervisor(folders, parts, gate, lifecycle, life)
        application = Router(default=gate, lifespan=supervisor.running)
        Server(uvicorn.Config(application, server_header=False), lifecycle, life).run([listening])
    _end(lifecycle)


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
