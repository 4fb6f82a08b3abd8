"""The command `eulerlora audit verify`."""

import os
from collections import Counter
from pathlib import Path

import click

_SHOWN_FIELDS = ("sequence", "time", "request_id", "client", "model", "mode", "label", "msp")

_existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("audit")
def audit_command() -> None:
    """Inspect the audit log of a service."""


@audit_command.command(
    "verify",
    epilog="\b\nExamples:\n"
    "  eulerlora audit verify audit.jsonl --secret-file audit.secret\n"
    "  eulerlora audit verify /var/log/eulerlora --secret-file audit.secret --expect-last MAC",
)
@click.argument(
    "paths",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
)
@click.option(
    "--secret-file",
    type=_existing_file,
    help="File with the audit secret.  [default: EULERLORA_AUDIT_SECRET]",
)
@click.option(
    "--after", metavar="MAC", help="Accept files that continue after this line of archived ones."
)
@click.option(
    "--expect-last", metavar="MAC", help="Require this line, noted earlier as the last one."
)
@click.option("--image", type=_existing_file, help="Show the decisions on this image file.")
def verify_command(
    paths: tuple[Path, ...],
    secret_file: Path | None,
    after: str | None,
    expect_last: str | None,
    image: Path | None,
) -> None:
    """Check that no line of an audit log was changed, removed, inserted or moved.

    The paths are all files of the log, the rotated ones too, or their folder, in any order. A
    missing file is noticed by the one that follows it. Lines and files that are missing at the end
    are noticed only with --expect-last.
    """
    from service.audit.file import (  # noqa: PLC0415
        DECISION,
        FIRST_PREVIOUS,
        REPAIR,
        Record,
        audit_files,
        records,
    )
    from service.audit.log import chain_key, image_hash, read_secret  # noqa: PLC0415

    secret = read_secret(secret_file, os.environ)
    wanted = image and image_hash(secret, image.read_bytes())
    files = [file for path in paths for file in (audit_files(path) if path.is_dir() else [path])]
    if not files:
        raise click.ClickException(f"{paths[0]}: expected audit logs, got none")
    kinds: Counter[str] = Counter()
    first: Record = {}
    last: Record = {}
    lines_since = None if expect_last else 0
    for last in records(files, chain_key(secret), after or FIRST_PREVIOUS):
        first = first or last
        kinds[last["kind"]] += 1
        if lines_since is not None:
            lines_since += 1
        elif last["mac"] == expect_last:
            lines_since = 0
        if wanted is not None and last["kind"] == DECISION and last["image"] == wanted:
            click.echo("  ".join(f"{name}={last[name]}" for name in _SHOWN_FIELDS))
    if lines_since is None:
        raise click.ClickException(
            f"expected the line {expect_last}, got {kinds.total():,} valid lines without it: the "
            "end of the log was removed, or it is another log"
        )
    click.echo(
        f"{len(files)} files, {kinds.total():,} lines, {kinds[DECISION]:,} decisions, "
        f"{kinds[REPAIR]:,} repairs after a crash"
    )
    click.echo(f"from {first['time']} to {last['time']}")
    click.echo(f"last {last['mac']}")
    click.echo(
        f"{lines_since:,} lines since the expected one"
        if expect_last
        else "lines removed from the end are noticed only with --expect-last"
    )
