"""The command `eulerlora audit verify`."""

import os
from collections import Counter
from pathlib import Path

import click

SHOWN_FIELDS = ("sequence", "time", "request_id", "client", "model", "mode", "label", "msp")

existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("audit")
def audit_command() -> None:
    """Inspect the audit log of a service."""


@audit_command.command(
    "verify",
    epilog="\b\nExample:\n  eulerlora audit verify audit.jsonl",
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
    from eulerlora_contract.errors import SettingsError  # noqa: PLC0415
    from service.audit.file import (  # noqa: PLC0415
        DECISION,
        FIRST_PREVIOUS,
        HEADER,
        REPAIR,
        Record,
        records,
    )
    from service.audit.log import image_hash, read_secret, secret_id  # noqa: PLC0415

    if image is None and secret_file is not None:
        raise click.UsageError("--secret-file requires --image")
    secret: bytes | None = None
    wanted: str | None = None
    if image is not None:
        secret = read_secret(secret_file, os.environ)
        wanted = image_hash(secret, image.read_bytes())
    kinds: Counter[str] = Counter()
    first: Record = {}
    last: Record = {}
    lines_since = None if expect_last else 0
    for last in records(path):  # at least a header
        first = first or last
        kinds[last["kind"]] += 1
        if lines_since is not None:
            lines_since += 1
        elif last["hash"] == expect_last:
            lines_since = 0
        is_header = last["kind"] == HEADER
        if secret is not None and is_header and last.get("secret_id") != secret_id(secret):
            raise SettingsError(f"{path}: was written with another secret")
        if wanted is not None and last["kind"] == DECISION and last["image"] == wanted:
            click.echo("  ".join(f"{name}={last[name]}" for name in SHOWN_FIELDS))
    if lines_since is None:
        raise click.ClickException(
            f"{path}: expected a line with the hash {expect_last}, got {kinds.total():,} valid "
            "lines without it: the end of the log was removed, or it is another log"
        )
    click.echo(
        f"{path}: {kinds.total():,} lines, {kinds[DECISION]:,} decisions, "
        f"{kinds[REPAIR]:,} repairs after a crash"
    )
    click.echo(f"from {first['time']} to {last['time']}")
    if first["previous"] != FIRST_PREVIOUS:
        click.echo(f"continues the chain that ended with {first['previous']}")
    click.echo(f"last {last['hash']}")
    if expect_last:
        click.echo(f"{lines_since:,} lines since the expected one")
