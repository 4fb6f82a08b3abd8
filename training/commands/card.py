"""The command `eulerlora card`."""

from pathlib import Path

import click

from eulerlora.errors import DataError
from training.commands.options import PATH
from training.reporting.model_card import write_model_card


@click.command("card")
@click.argument("checkpoint", type=PATH)
@click.option("--report", type=PATH, required=True, help="What `evaluate --out` wrote.")
@click.option("--comparison", type=PATH, help="Markdown on other methods, for a section of it.")
def card_command(checkpoint: Path, report: Path, comparison: Path | None) -> None:
    """Write the model card of a checkpoint from a report on it."""
    write_model_card(checkpoint, report, "" if comparison is None else _text(comparison))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable text file ({error})") from error
