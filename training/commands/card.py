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
@click.option(
    "--performance",
    type=PATH,
    help="Markdown file of `eulerlora policy show --performance`, for the section Known weakness.",
)
def card_command(
    checkpoint: Path, report: Path, comparison: Path | None, performance: Path | None
) -> None:
    """Write the model card of a checkpoint from its report."""
    from training.reporting.model_card import write_model_card  # noqa: PLC0415 - imports matplotlib

    write_model_card(checkpoint, report, _read_text(comparison), _read_text(performance))


def _read_text(path: Path | None) -> str:
    """Returns the text of a file, or "" without one. Raises DataError with the path."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 text file") from error
