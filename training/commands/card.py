"""The command `eulerlora card`."""

from pathlib import Path

import click

from eulerlora.errors import DataError
from training.commands.options import PATH

CARD, FACTS = "model-card", "model-facts"


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
@click.option(
    "--format",
    "form",
    type=click.Choice([CARD, FACTS]),
    default=CARD,
    help="The card is written to the checkpoint's README.md; the shorter facts are printed.",
    show_default=True,
)
def card_command(
    checkpoint: Path,
    report: Path,
    comparison: Path | None,
    performance: Path | None,
    form: str,
) -> None:
    """Write the model card of a checkpoint from its report."""
    from training.reporting import model_card  # noqa: PLC0415 - imports matplotlib

    measured = _read_text(performance)
    if form == CARD:
        model_card.write_model_card(checkpoint, report, _read_text(comparison), measured)
        return
    if comparison is not None:
        raise click.UsageError(f"expected --comparison only with --format {CARD}")
    click.echo(model_card.read_model_facts(checkpoint, report, measured), nl=False)


def _read_text(path: Path | None) -> str:
    """Returns the text of a file, or "" without one. Raises DataError with the path."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 text file") from error
