"""The command `eulerlora audit verify`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # imported at run time only by the command that needs it
    from service.audit.file import Record, Summary

SHOWN_FIELDS = ("sequence", "time", "request_id", "client", "model", "mode", "label", "msp")

existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("audit")
def audit_command() -> None:
    """Inspect the audit log of a service."""


@audit_command.command(
    "verify",
    epilog="\b\nExample:\n  eulerlora audit verify audit.log",
)
@click.argument("path", metavar="FILE", type=existing_file)
@click.option(
    "--expect-last",
    metavar="HASH",
    help="Require a line with this hash, noted earlier as the last one.",
)
@click.option("--image", type=existing_file, help="Show the decisions on this image file.")
@click.option(
    "--secret-file",
    type=existing_file,
    help="File with the audit secret, for --image.  [default: EULERLORA_AUDIT_SECRET]",
)
def verify_command(
    path: Path, expect_last: str | None, image: Path | None, secret_file: Path | None
) -> None:
    """Check that no line of an audit log was changed, removed, inserted or moved."""
    from service.audit.file import Summary, records  # noqa: PLC0415

    if image is None and secret_file is not None:
        raise click.UsageError("--secret-file requires --image")
    image_filter = None if image is None else ImageFilter(image, secret_file)
    summary, lines_since = Summary(), None if expect_last else 0
    for record in records(path):
        summary.count(record)
        if lines_since is not None:
            lines_since += 1
        elif record["hash"] == expect_last:
            lines_since = 0
        if image_filter:
            image_filter.show(path, record)
    if lines_since is None:
        raise click.ClickException(
            f"{path}: expected a line with the hash {expect_last}, got {summary.lines:,} valid "
            "lines without it: the end of the log was removed, or it is another log"
        )
    _show(path, summary)
    if expect_last:
        click.echo(f"{lines_since:,} lines since the expected one")


class ImageFilter:
    """Prints the decisions on one image file."""

    def __init__(self, image: Path, secret_file: Path | None) -> None:
        from service.audit.log import image_hash, read_secret, secret_id  # noqa: PLC0415

        secret = read_secret(secret_file, os.environ)
        self._hash = image_hash(secret, image.read_bytes())
        self._secret_id = secret_id(secret)

    def show(self, path: Path, record: "Record") -> None:
        """Prints the record if it is about the image. Raises SettingsError for another secret."""
        from eulerlora.errors import SettingsError  # noqa: PLC0415
        from service.audit.file import DECISION, HEADER  # noqa: PLC0415

        if record["kind"] == HEADER and record.get("secret_id") != self._secret_id:
            raise SettingsError(f"{path}: was written with another secret")
        if record["kind"] == DECISION and record["image"] == self._hash:
            click.echo("  ".join(f"{name}={record[name]}" for name in SHOWN_FIELDS))


def _show(path: Path, summary: "Summary") -> None:
    click.echo(
        f"{path}: {summary.lines:,} lines, {summary.decisions:,} decisions, "
        f"{summary.repairs:,} repairs after a crash"
    )
    click.echo(f"from {summary.first_time} to {summary.last_time}")
    if summary.continues:
        click.echo(f"continues the chain that ended with {summary.continues}")
    click.echo(f"last {summary.last_hash}")
