"""The commands `eulerlora audit verify` and `due`."""

from __future__ import annotations

import calendar
import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora_contract.printable import printable
from eulerlora_contract.processes import protect_memory
from eulerlora_contract.program import INPUT_FILE

if TYPE_CHECKING:
    from eulerlora_clinic.audit.file import Record

_ANSWER_FIELDS = (
    "sequence", "time", "request_id", "item_id", "lesion", "client", "model", "mode", "label",
    "msp",
)  # fmt: skip
_DECISION_FIELDS = (
    "sequence", "time", "request_id", "item_id", "client", "disposition", "decision", "reason",
    "diagnosis",
)  # fmt: skip

_PATHS = click.argument(
    "paths",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
)
_SECRET = click.option(
    "--audit-secret",
    type=INPUT_FILE,
    help="File with the audit secret.  [default: EULERLORA_AUDIT_SECRET]",
)
_AFTER = click.option(
    "--after", metavar="MAC", help="Accept files that continue after this line of archived ones."
)


@click.group("audit")
def audit_command() -> None:
    """Inspect the audit log of a service."""
    with suppress(OSError):
        protect_memory()  # the secret


@audit_command.command(
    "verify",
    epilog="\b\nExamples:\n"
    "  eulerlora audit verify audit.jsonl --audit-secret audit.secret\n"
    "  eulerlora audit verify /var/log/eulerlora --audit-secret audit.secret --expect-last MAC",
)
@_PATHS
@_SECRET
@_AFTER
@click.option(
    "--expect-last", metavar="MAC", help="Require this line, noted earlier as the last one."
)
@click.option("--image", type=INPUT_FILE, help="Show answers and decisions on this image file.")
@click.option("--decisions", "shows_decisions", is_flag=True, help="Show the decisions of people.")
def _verify_command(
    paths: tuple[Path, ...],
    audit_secret: Path | None,
    after: str | None,
    expect_last: str | None,
    image: Path | None,
    shows_decisions: bool,
) -> None:
    """Check that no line of an audit log was changed, removed, inserted or moved.

    The paths are all files of the log, the rotated ones too, or their folder, in any order. A
    missing file is noticed by the one that follows it. Lines and files that are missing at the end
    are noticed only with --expect-last.
    """
    from eulerlora_clinic.audit.file import (  # noqa: PLC0415
        ANSWER,
        DECISION,
        FIRST_PREVIOUS,
        REPAIR,
        records,
    )
    from eulerlora_clinic.audit.log import chain_key, image_hash, read_secret  # noqa: PLC0415

    secret = read_secret(audit_secret, os.environ, "--audit-secret")
    wanted = image and image_hash(secret, image.read_bytes())
    files = _files(paths)
    shown = {ANSWER: _ANSWER_FIELDS, DECISION: _DECISION_FIELDS}
    kinds: Counter[str] = Counter()
    first: Record = {}
    last: Record = {}
    lines_since = None if expect_last else 0
    for last in records(files, chain_key(secret), after or FIRST_PREVIOUS):
        first = first or last
        kind = last["kind"]
        kinds[kind] += 1
        if lines_since is not None:
            lines_since += 1
        elif last["mac"] == expect_last:
            lines_since = 0
        is_wanted = wanted is not None and last.get("image") == wanted
        if is_wanted or (shows_decisions and kind == DECISION and wanted is None):
            fields = (f"{name}={printable(str(last[name]))}" for name in shown[kind])
            click.echo("  ".join(fields))
    if lines_since is None:
        raise click.ClickException(
            f"expected the line {expect_last}, got {kinds.total():,} valid lines without it: the "
            "end of the log was removed, or it is another log"
        )
    click.echo(
        f"files: {len(files)}, lines: {kinds.total():,}, answers: {kinds[ANSWER]:,}, "
        f"decisions: {kinds[DECISION]:,}, repairs after a crash: {kinds[REPAIR]:,}"
    )
    click.echo(f"from {first['time']} to {last['time']}")
    click.echo(f"last {last['mac']}")
    click.echo(
        f"lines since the expected one: {lines_since:,}"
        if expect_last
        else "lines removed from the end are noticed only with --expect-last"
    )


@audit_command.command(
    "due",
    epilog="\b\nExample:\n  eulerlora audit due /var/log/eulerlora --audit-secret audit.secret",
)
@_PATHS
@_SECRET
@_AFTER
@click.option(
    "--months",
    type=click.IntRange(1, 1200),
    help="Retention in months, in place of that in the header of each file.",
)
def _due_command(
    paths: tuple[Path, ...], audit_secret: Path | None, after: str | None, months: int | None
) -> None:
    """List the files of an audit log whose lines are all older than the retention.

    Verifies the files first. Deletes nothing: a service writes to the last file, and later files
    are verified with `--after MAC` once earlier ones are gone.
    """
    from eulerlora_clinic.audit.file import FIRST_PREVIOUS, HEADER, records  # noqa: PLC0415
    from eulerlora_clinic.audit.log import chain_key, read_secret  # noqa: PLC0415

    secret = read_secret(audit_secret, os.environ, "--audit-secret")
    key, paths = chain_key(secret), tuple(_files(paths))
    spans: list[tuple[Record, Record]] = []  # the first and the last record of each file
    for record in records(paths, key, after or FIRST_PREVIOUS):
        if record["kind"] == HEADER:
            spans.append((record, record))
        spans[-1] = (spans[-1][0], record)
    names = {}
    for path in paths:
        with path.open("rb") as file:
            names[json.loads(file.readline())["mac"]] = path
    due_mac = None
    for header, last in spans:
        retention = months or header["retention_months"]
        due = _later_by(datetime.fromisoformat(last["time"]), retention) if retention else None
        is_due = due is not None and due <= datetime.now(UTC)
        state = "kept" if due is None else f"{'DUE since' if is_due else 'due'} {due:%Y-%m-%d}"
        due_mac = last["mac"] if is_due else due_mac
        click.echo(
            f"{printable(str(names[header['mac']]))}: {header['time'][:10]} to "
            f"{last['time'][:10]}, lines: {1 + last['sequence'] - header['sequence']:,}, {state}"
        )
    if due_mac is not None:
        click.echo(f"after deleting what is due, verify the rest with --after {due_mac}")


def _later_by(time: datetime, months: int) -> datetime:
    """The time some calendar months later; on a shorter month, on its last day."""
    year, month = divmod(time.year * 12 + time.month - 1 + months, 12)
    day = min(time.day, calendar.monthrange(year, month + 1)[1])
    return time.replace(year=year, month=month + 1, day=day)


def _files(paths: Sequence[Path]) -> list[Path]:
    """The files, and the audit logs in folders.

    Raises:
        ClickException: If there are none.
    """
    from eulerlora_clinic.audit.file import audit_files  # noqa: PLC0415 - fast --help

    files = [file for path in paths for file in (audit_files(path) if path.is_dir() else [path])]
    if not files:
        raise click.ClickException(f"{paths[0]}: expected audit logs, got none")
    return files
