"""The command `eulerlora serve`. Importing this module must stay cheap: `--help` needs it."""

import gc
import signal
import sys
from contextlib import suppress
from textwrap import fill
from typing import Any

import click

from eulerlora.commands import DEFAULT_NAME, PRECISION_CHOICES, configure_openmp, runtime_option
from eulerlora_contract.processes import protect_memory
from eulerlora_contract.program import PATH
from eulerlora_contract.sampling import AUTO
from service.decoding.fork_server import FORK_SERVER
from service.options import extension_options
from service.telemetry.stderr import protect_stderr


class _ServeCommand(click.Command):
    """A command with the options of extensions."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        added = (option for options in extension_options().values() for option in options)
        return [*super().get_params(ctx), *added]


def _list_settings(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from service.settings import variables  # noqa: PLC0415 - takes a moment

    for one in variables():
        text = fill(one.text, 100, initial_indent="# ", subsequent_indent="# ")
        click.echo(f"{text}\n{one.name}={one.default}")
    context.exit()


@click.command(
    "serve",
    cls=_ServeCommand,
    epilog="\b\nExamples:\n"
    "  eulerlora serve\n"
    "  eulerlora serve checkpoint/ --port 9000\n"
    "  eulerlora serve first=runs/1 second=runs/2 default\n"
    "  eulerlora serve runs/1 --shadow runs/2\n"
    "  eulerlora serve --host 0.0.0.0 --keys keys.jsonl",
)
@click.argument("checkpoints", nargs=-1, metavar="[[NAME=]CHECKPOINT ...]")
@click.option(
    "--shadow",
    metavar="[NAME=]CHECKPOINT",
    help="Compare the answers of a served model, by default the first, with those of CHECKPOINT, "
    "for the metrics only.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="TCP port; 0 selects a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--keys", type=PATH, help="Require an API key from this file (`eulerlora keys new`).")
@click.option("--open", "open_to_all", is_flag=True, help="Serve other hosts without keys.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--require-signature",
    type=PATH,
    metavar="KEY",
    help="Serve only checkpoints that `eulerlora sign` signed; the file of the public key.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISION_CHOICES),
    default="auto",
    show_default=True,
    help="Data type of the matrix products; auto: bfloat16 if it is fast and changes little.",
)
@runtime_option(AUTO)
@click.option("--compile", "compiled", is_flag=True, help="Compile the network; starts slower.")
@click.option(
    "--log-format",
    type=click.Choice(("auto", "json", "text")),
    default="auto",
    show_default=True,
    help="auto: text on a terminal, otherwise JSON.",
)
@click.option(
    "--drain-s",
    type=click.FloatRange(min=0),
    help="Seconds for which requests are accepted after SIGTERM.",
)
@click.option(
    "--require-sandbox",
    is_flag=True,
    help="Refuse to start if the kernel cannot restrict the decoders of images fully.",
)
@click.option("--trace", is_flag=True, help="Export traces to the collector of OTEL_EXPORTER_*.")
@click.option(
    "--settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_settings,
    help="Print the environment variables with defaults and meaning, and exit.",
)
def serve_command(checkpoints: tuple[str, ...], **options: Any) -> None:
    """Serve one or more checkpoints over HTTP; by default the embedded one.

    CHECKPOINT is a folder, `default` for the embedded one, or a repository of the Hugging Face Hub,
    hf://ORGANISATION/NAME[@REVISION]. NAME is that of the model in requests; by default the one in
    the checkpoint.

    Environment variables EULERLORA_SERVE_* set the limits; `--settings` prints them. SIGHUP reloads
    the checkpoints.
    """
    import starlette  # noqa: F401, PLC0415 - without the extra `serve`, fails before a process starts

    protect_stderr()
    configure_openmp()
    for number in (signal.SIGTERM, signal.SIGINT):  # until the server installs its handlers
        signal.signal(number, lambda *_: sys.exit(0))
    with suppress(OSError):
        protect_memory()  # keys, secrets and pictures
    FORK_SERVER.start()  # imports the decoder while this process imports its own modules
    gc.disable()  # nearly all objects of the imports exist until exit
    from service.process import ServeOptions, run  # noqa: PLC0415 - imports torch and uvicorn

    gc.freeze()
    gc.enable()
    extensions = {
        name: {option.name: options.pop(option.name) for option in added if option.name}
        for name, added in extension_options().items()
    }
    chosen = checkpoints or (DEFAULT_NAME,)
    run(ServeOptions(checkpoints=chosen, extensions=extensions, **options))
