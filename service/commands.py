"""The command `eulerlora serve`."""

import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import click
import uvicorn

from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from eulerlora.settings import PRECISIONS, Precision
from service.app import create_app
from service.served_model import ServedModel, ServedModels
from service.settings import ServiceSettings

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
    signal.signal(signal.SIGTERM, _exit_cleanly)
    settings = ServiceSettings()
    compiler = "inductor" if compiled else None
    models = ServedModels(
        ServedModel.of(EulerLoRA.load(folder, device, precision, compiler))
        for folder in checkpoints or (EMBEDDED,)
    )
    with listen(host, port) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}"
        click.echo(f"serving {', '.join(models)} on {address}", err=True)
        config = uvicorn.Config(create_app(models, settings), server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingsError where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _exit_cleanly(*_: object) -> NoReturn:
    """For SIGTERM: while a model loads, and when uvicorn has finished and raises it once more."""
    sys.exit(0)
