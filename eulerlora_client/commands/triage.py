"""The command `eulerlora triage`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import click

from eulerlora.errors import SettingsError
from eulerlora.options import Samples
from eulerlora.settings import Auto
from eulerlora_client.commands.progress import Display
from eulerlora_client.contract.models import ModelDetails
from eulerlora_client.contract.problems import Unreachable
from eulerlora_client.policy.policy import Policy, default_policy, read_policy
from eulerlora_client.sdk.async_client import AsyncTriageClient
from eulerlora_client.sdk.requests import Question, connection
from eulerlora_client.sdk.retry import Patience, Timeouts
from eulerlora_client.triage.files import considered
from eulerlora_client.triage.outputs import Outputs
from eulerlora_client.triage.run import TriageRow, not_asked, triage
from eulerlora_client.triage.table import show

KEY_VARIABLE = "EULERLORA_KEY"
QUOTA_S = 3600.0  # a long run outlasts many quotas
FIRST = Patience(service_s=0, quota_s=QUOTA_S)  # a wrong address is told at once
PATIENCE = Patience(quota_s=QUOTA_S)

READ = click.Path(path_type=Path, exists=True, dir_okay=False)
WRITTEN = click.Path(path_type=Path, dir_okay=False)


@click.command("triage")
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The service's.")
@click.option("--key-file", type=READ, help=f"File of the service's key; else {KEY_VARIABLE}.")
@click.option("--policy", "policy_file", type=READ, help="A policy file; else the packaged one.")
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option("--samples", type=Samples(), help="Per adapter, in stoch; 4 by default.")
@click.option("--model", help="A served model; the service's default if left out.")
@click.option("--csv", "csv_file", type=WRITTEN, help="Write a CSV file.")
@click.option("--json-lines", "json_file", type=WRITTEN, help="Write one JSON object a line.")
@click.option("--report", "report_file", type=WRITTEN, help="Write a self-contained HTML file.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=4, show_default=True)
def triage_command(
    images: tuple[Path, ...],
    url: str,
    key_file: Path | None,
    policy_file: Path | None,
    mode: str,
    samples: int | Auto | None,
    model: str | None,
    csv_file: Path | None,
    json_file: Path | None,
    report_file: Path | None,
    concurrency: int,
) -> None:
    """Prioritise lesion images with a running service: a suggested pathway and reasons for each.

    Takes files, and all images below folders; formats that the service does not read get a row
    that says so. The exit status is 1 where any file got no decision. For demonstration and
    research only; not a medical device.
    """
    if mode == "det" and samples is not None:
        raise click.UsageError("--samples belongs to --mode stoch")
    run = _run(url, key_file, policy_file, Question(mode, samples, model=model, detail=True))
    found = considered(images)
    outputs = Outputs(csv_file, json_file, report_file)
    outputs.check(found.files)
    if found.others:
        left_out = "1 file" if found.others == 1 else f"{found.others} files"
        click.echo(f"{left_out} without an image's extension left out", err=True)
    details = asyncio.run(_details(run))
    rows, ended = _rows(run, details.max_body_bytes, found.files, concurrency)
    try:
        outputs.write(
            rows, run.policy, details.classes
        )  # before the table: whoever reads that may have left
    finally:
        show(rows, run.policy, sys.stdout)
    if ended is not None:
        raise ended
    _tell_of_gaps(rows)


@dataclass(frozen=True)
class _Run:
    """What every file of a run is asked with."""

    url: str
    key: str | None
    question: Question
    policy: Policy

    def client(self, patience: Patience) -> AsyncTriageClient:
        """A client of the run's service."""
        return AsyncTriageClient(self.url, self.key, patience=patience)


def _run(url: str, key_file: Path | None, policy_file: Path | None, question: Question) -> _Run:
    key = (os.environ.get(KEY_VARIABLE) or None) if key_file is None else _key_in(key_file)
    policy = default_policy() if policy_file is None else read_policy(policy_file)
    try:
        connection(url, key, Timeouts())
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    return _Run(url, key, question, policy)


def _key_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: wanted a key as text") from error


async def _details(run: _Run) -> ModelDetails:
    """What is known of the model. Raises a Problem where not even that can be asked."""
    async with run.client(FIRST) as client:
        return await client.model(run.question.model or (await client.models())[0].name)


def _rows(
    run: _Run, most_bytes: int, files: Sequence[Path], concurrency: int
) -> tuple[list[TriageRow], BaseException | None]:
    """A row for each file, and what ended the run before it had asked about all of them."""
    rows: list[TriageRow] = []
    ended: BaseException | None = None
    with Display(len(files)) as display:
        try:
            asyncio.run(_ask(run, most_bytes, files, concurrency, rows, display))
        except (KeyboardInterrupt, SystemExit) as signal:  # what is known so far is kept
            ended = signal
    return [*rows, *map(not_asked, files[len(rows) :])], ended


async def _ask(
    run: _Run,
    most_bytes: int,
    files: Sequence[Path],
    concurrency: int,
    rows: list[TriageRow],
    display: Display,
) -> None:
    """Fills `rows`."""
    async with run.client(PATIENCE) as client:
        found = triage(files, client, run.question, run.policy, most_bytes, concurrency)
        async with aclosing(found):
            async for row in found:
                rows.append(row)
                display.advance()


def _tell_of_gaps(rows: Sequence[TriageRow]) -> None:
    """Raises ClickException where a file has no decision."""
    problems = [row.problem for row in rows if row.problem is not None]
    gone = next((each.detail for each in problems if each.code == Unreachable.code), None)
    if problems:
        reason = "" if gone is None else f"; {gone}"
        raise click.ClickException(f"{len(problems)} of {len(rows)} files got no decision{reason}")
