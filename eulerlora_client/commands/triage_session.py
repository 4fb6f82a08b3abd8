"""One run of `eulerlora triage`: from the arguments to the output files and the table."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import click

from eulerlora_client.commands.progress import TriageProgress
from eulerlora_client.contract.models import ModelDetails
from eulerlora_client.contract.problems import Unreachable
from eulerlora_client.errors import PolicyError, SettingsError
from eulerlora_client.policy.evidence import default_sampling
from eulerlora_client.policy.policy import Policy, policy_of, read_policy
from eulerlora_client.report.outputs import Outputs
from eulerlora_client.report.table import print_table
from eulerlora_client.sdk.async_client import AsyncTriageClient
from eulerlora_client.sdk.requests import TriageOptions, connection_options
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts
from eulerlora_client.triage.files import select_files
from eulerlora_client.triage.result import TriageRow
from eulerlora_client.triage.run import cancelled_row, triage

QUOTA_S = 3600.0  # a long run outlasts many quotas
FIRST_RETRY = RetryPolicy(service_s=0, quota_s=QUOTA_S)  # reports a wrong address at once
RETRY = RetryPolicy(quota_s=QUOTA_S)


@dataclass(frozen=True)
class Session:
    """The settings that all requests of a run share. policy: None takes that of the service."""

    url: str
    key: str | None
    policy: Policy | None
    options: TriageOptions
    concurrency: int
    strip_metadata: bool

    @classmethod
    def create(
        cls,
        url: str,
        key: str | None,
        policy_file: Path | None,
        options: TriageOptions,
        concurrency: int,
        strip_metadata: bool,
    ) -> Self:
        """Reads the policy file, if any. Raises UsageError for an invalid URL or key."""
        policy = None if policy_file is None else read_policy(policy_file)
        try:
            connection_options(url, key, Timeouts())
        except SettingsError as error:
            raise click.UsageError(str(error)) from error
        return cls(url, key, policy, options, concurrency, strip_metadata)

    def client(self, retry: RetryPolicy) -> AsyncTriageClient:
        """Returns a client of the service."""
        return AsyncTriageClient(
            self.url, self.key, strip_metadata=self.strip_metadata, retry=retry
        )


@dataclass(frozen=True)
class _Service:
    """The model that answers, and the policy that decides."""

    model: ModelDetails
    policy: Policy


@dataclass
class _Received:
    """The rows so far, and the signal that ended the run early."""

    rows: list[TriageRow]
    interrupt: BaseException | None = None


def run_session(
    session: Session, images: Sequence[Path], outputs: Outputs, settings_files: Sequence[Path]
) -> None:
    """Sends all images, writes the outputs and prints the table.

    settings_files: the files of the key and the policy, which no output may replace. After SIGINT
    or SIGTERM the outputs hold the rows so far. Raises ClickException if a file has no decision.
    """
    selection = select_files(images)
    outputs.check([*selection.files, *settings_files])
    if selection.skipped:
        noun = "1 file" if selection.skipped == 1 else f"{selection.skipped} files"
        click.echo(f"{noun} without an image extension skipped", err=True)
    service = asyncio.run(_service(session))
    session = replace(session, options=_with_defaults(session.options, service.policy))
    received = _send_all(session, selection.files, service.model.max_body_bytes)
    missing = selection.files[len(received.rows) :]
    rows = [*received.rows, *map(cancelled_row, missing)]
    try:
        # files first: printing fails if the reader of stdout has gone
        outputs.write(rows, service.policy)
    finally:
        print_table(rows, service.policy, sys.stdout)
    if received.interrupt is not None:
        raise received.interrupt
    _check_complete(rows)


def read_key(file: Path) -> str:
    """Returns the API key in a file. Raises UsageError if the file is not text."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: expected an API key as text") from error


async def _service(session: Session) -> _Service:
    """Returns the model and the policy of a run.

    Raises Problem, without retries for a wrong address, and PolicyError if they do not fit.
    """
    async with session.client(FIRST_RETRY) as client:
        name = session.options.model or (await client.models())[0].name
        model, described = await client.model(name), await client.policy()
    policy = session.policy or policy_of(described.policy, "the policy of the service")
    classes = [entry.name for entry in model.classes]
    missing = [name for name in policy.malignant.classes if name not in classes]
    if missing:
        raise PolicyError(
            f"the policy's malignant group requires the classes {', '.join(missing)}; the model "
            f"{model.name} has {', '.join(classes)}"
        )
    return _Service(model, policy)


def _with_defaults(options: TriageOptions, policy: Policy) -> TriageOptions:
    """Returns the options with the mode and samples that the policy's threshold was set for."""
    sampling = default_sampling(policy.evidence, options.mode, options.samples)
    if sampling.mode != "stoch" and sampling.samples is not None:
        raise click.UsageError(
            f"expected --samples only with --mode stoch, got mode {sampling.mode} of the policy"
        )
    return replace(options, mode=sampling.mode, samples=sampling.samples)


def _send_all(session: Session, files: Sequence[Path], max_bytes: int) -> _Received:
    """Returns a row for each file, up to the signal that ended the run."""
    received = _Received([])
    with TriageProgress(len(files)) as display:
        try:
            asyncio.run(_send(session, files, max_bytes, received.rows, display))
        except (KeyboardInterrupt, SystemExit) as interrupt:  # the rows so far are still written
            received.interrupt = interrupt
    return received


async def _send(
    session: Session,
    files: Sequence[Path],
    max_bytes: int,
    rows: list[TriageRow],
    display: TriageProgress,
) -> None:
    """Appends a row per file to `rows`."""
    async with session.client(RETRY) as client:
        run = triage(files, client, session.options, session.policy, max_bytes, session.concurrency)
        async with aclosing(run):
            async for row in run:
                rows.append(row)
                display.advance()


def _check_complete(rows: Sequence[TriageRow]) -> None:
    """Raises ClickException if a file has no decision."""
    problems = [row.problem for row in rows if row.problem is not None]
    if problems:
        unreachable = (
            f"; {problem.detail}" for problem in problems if problem.code == Unreachable.code
        )
        reason = next(unreachable, "")
        raise click.ClickException(f"{len(problems)} of {len(rows)} files have no decision{reason}")
