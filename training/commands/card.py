"""The command `eulerlora card`."""

from pathlib import Path

import click

from eulerlora.errors import DataError
from training.commands.options import PATH


@click.command("card")
@click.argument("checkpoint", type=PATH)
@click.option("--report", type=PATH, required=True, help="Folder written by `evaluate --out`.")
@click.option(
    "--comparison", type=PATH, help="Markdown file, included as a section on other methods."
)
def card_command(checkpoint: Path, report: Path, comparison: Path | None) -> None:
    """Write the model card of a checkpoint from its report."""
    from training.reporting.model_card import write_model_card  # noqa: PLC0415 - imports matplotlib

    write_model_card(checkpoint, report, "" if comparison is None else _read_text(comparison))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 text file") from error
