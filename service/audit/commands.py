"""The command `eulerlora audit verify`."""

import os
from pathlib import Path

import click

from eulerlora.errors import SettingsError
from service.audit.chain import DECISION, HEADER, Record
from service.audit.secret import VARIABLE, image_hash, read_secret, secret_id
from service.audit.verification import Summary, records

existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("audit")
def audit_command() -> None:
    """Look into the audit log of a service."""


@audit_command.command("verify")
@click.argument("path", metavar="FILE", type=existing_file)
@click.option(
    "--expect-last", metavar="HASH", help="A line that was once the last must still be there."
)
@click.option("--image", type=existing_file, help="Show the decisions on this image file.")
@click.option(
    "--secret-file", type=existing_file, help=f"For --image; {VARIABLE} where it is left out."
)
def verify_command(
    path: Path, expect_last: str | None, image: Path | None, secret_file: Path | None
) -> None:
    """Check that no line of an audit log was changed, taken out, put in or moved."""
    if image is None and secret_file is not None:
        raise click.UsageError("--secret-file belongs to --image")
    sought = None if image is None else SoughtImage(image, secret_file)
    summary, since = Summary(), None if expect_last else 0
    for record in records(path):
        summary.count(record)
        if since is not None:
            since += 1
        elif record["hash"] == expect_last:
            since = 0
        if sought:
            sought.show(path, record)
    if since is None:
        raise click.ClickException(
            f"{path}: {summary.lines:,} good lines, none with the hash {expect_last}: "
            "lines were taken off the end, or it is another log"
        )
    _show(path, summary)
    if expect_last:
        click.echo(f"{since:,} lines since the expected one")


class SoughtImage:
    """Prints the decisions that were about one image file."""

    def __init__(self, image: Path, secret_file: Path | None) -> None:
        secret = read_secret(secret_file, os.environ)
        self._hash = image_hash(secret, image.read_bytes())
        self._secret_id = secret_id(secret)

    def show(self, path: Path, record: Record) -> None:
        """Prints the record if it is of the image. Raises SettingsError for another secret."""
        if record["kind"] == HEADER and record.get("secret_id") != self._secret_id:
            raise SettingsError(f"{path}: written with another secret than the one given")
        if record["kind"] == DECISION and record["image"] == self._hash:
            fields = ("sequence", "time", "request_id", "client", "model", "mode", "label", "msp")
            click.echo("  ".join(f"{name}={record[name]}" for name in fields))


def _show(path: Path, summary: Summary) -> None:
    click.echo(
        f"{path}: {summary.lines:,} lines, {summary.decisions:,} decisions, "
        f"{summary.repairs:,} repairs after a crash"
    )
    click.echo(f"from {summary.first_time} to {summary.last_time}")
    if summary.continues:
        click.echo(f"takes up the chain that ended in {summary.continues}")
    click.echo(f"last {summary.last_hash}")
