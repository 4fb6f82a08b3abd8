"""The command `eulerlora serve`."""

from pathlib import Path

import click
import uvicorn

from eulerlora.model import EulerLoRA
from service.app import create_app
from service.served_model import ServedModel, ServedModels
from service.settings import ServiceSettings

EMBEDDED = Path(__file__).parent / "default"


@click.command("serve")
@click.argument(
    "checkpoints", nargs=-1, type=click.Path(path_type=Path), metavar="[CHECKPOINT ...]"
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
def serve_command(checkpoints: tuple[Path, ...], host: str, port: int, device: str) -> None:
    """Answer HTTP requests with one or more checkpoints, or with the embedded one."""
    settings = ServiceSettings()
    models = ServedModels(
        ServedModel(EulerLoRA.load(folder, device), settings.max_batch_rows)
        for folder in checkpoints or (EMBEDDED,)
    )
    click.echo(f"serving {', '.join(models)} on http://{host}:{port}", err=True)
    uvicorn.run(create_app(models, settings), host=host, port=port, server_header=False)
