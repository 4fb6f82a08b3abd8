"""The command `eulerlora demo`: a service, five pictures drawn by a program, and its answers."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from eulerlora_contract.processes import start_python

_BLUR_PX = 8
_SKIN = (207, 153, 168)
_POLL_S = 0.1
_READY = re.compile(r"^serving .* on (http://\S+)$", re.MULTILINE)
"""The line of a service that is ready."""
_MACHINE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""The variables that the service gets beside its settings."""


@click.command("demo", epilog="\b\nExample:\n  eulerlora demo")
def demo_command() -> None:
    """Start the service, triage five drawn pictures, print the answers and stop it.

    The pictures show no real lesion: two spots, one of them also out of focus, a house and a blank
    one. On a terminal the service runs until a key is pressed, so that its page can be opened.
    """
    from eulerlora_clinic.commands.session import Session, run_session  # noqa: PLC0415
    from eulerlora_clinic.report.exports import Outputs  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        pictures, log = Path(folder, "pictures"), Path(folder, "log")
        _draw_pictures(pictures)
        click.echo("starting the service with the embedded checkpoint", err=True)
        with _running_service(log) as url:
            session = Session(url, None, None, {}, concurrency=1, strip_metadata=False)
            run_session(session, [pictures], Outputs(None, None, None), ())
            click.echo("An unfamiliar picture can be urgent, since it may show a melanoma.")
            click.pause(f"\nthe page for people, until a key is pressed: {url}")


def _draw_pictures(folder: Path) -> None:
    """Writes the five pictures into a new folder."""
    from PIL import Image, ImageFilter  # noqa: PLC0415

    folder.mkdir()
    for name in ("even", "irregular", "house"):
        content = (
            files("eulerlora_clinic")
            .joinpath("service", "page", f"example-{name}.jpg")
            .read_bytes()
        )
        (folder / f"{name}.jpg").write_bytes(content)
    with Image.open(folder / "irregular.jpg") as spot:
        blurred = spot.filter(ImageFilter.GaussianBlur(_BLUR_PX))
    blurred.save(folder / "out-of-focus.jpg")
    Image.new("RGB", blurred.size, _SKIN).save(folder / "blank.png")


@contextmanager
def _running_service(log: Path) -> Iterator[str]:
    """Runs `eulerlora serve` on a free port of this machine; yields its URL once it is ready.

    Args:
        log: Gets its messages, which are printed if it ends before it is ready.

    Raises:
        ClickException: If it ends before it is ready.
    """
    from service.settings import VARIABLE_PREFIX  # noqa: PLC0415 - slow to import

    # A graph of OpenVINO would take longer than the answers.
    arguments = ("serve", "--port", "0", "--log-format", "text", "--runtime", "torch")
    names = [name for name in os.environ if name.startswith(VARIABLE_PREFIX) or name in _MACHINE]
    settings = {name: os.environ[name] for name in names}
    start = partial(start_python, "eulerlora_contract", *arguments, environment=settings)
    with log.open("wb") as stderr, start(stderr=stderr) as process:
        try:
            while not (ready := _READY.search(log.read_text())):
                if process.poll() is not None:
                    click.echo(log.read_text(), err=True, nl=False)
                    raise click.ClickException("the service did not start")
                time.sleep(_POLL_S)
            yield ready[1]
        finally:
            process.terminate()
