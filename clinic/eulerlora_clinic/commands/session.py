"""One run of `eulerlora triage`: sends all files to the service, writes outputs, prints a table."""

import asyncio
import csv
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import click

from eulerlora_client.client import AsyncTriageClient, PredictOptions, map_ordered
from eulerlora_client.images import image_bytes
from eulerlora_client.retries import RetryPolicy
from eulerlora_clinic.policy.policy import Policy, default_sampling, policy_of
from eulerlora_clinic.policy.results import decided
from eulerlora_clinic.report.exports import Outputs
from eulerlora_clinic.report.ranking import RowProblem, TriageRow
from eulerlora_clinic.report.terminal import print_table
from eulerlora_contract.answers import ModelDetails
from eulerlora_contract.errors import PolicyError, SettingsError
from eulerlora_contract.image_folders import select_files
from eulerlora_contract.printable import printable
from eulerlora_contract.problems import BodyTooLarge, Problem, Unreachable
from eulerlora_contract.progress import ProgressBar
from eulerlora_contract.tables import read_rows

_QUOTA_S = 3600.0  # a long run outlasts many quotas
_FIRST_RETRY = RetryPolicy(service_s=0, quota_s=_QUOTA_S)  # reports a wrong address at once
_RETRY = RetryPolicy(quota_s=_QUOTA_S)
_FOLDERS = Path("folders")
_CANCELLED = RowProblem("not_asked", "the run ended before its result")


@dataclass(frozen=True)
class Session:
    """The settings that all requests of a run share.

    Attributes:
        policy: None for that of the service.
    """

    url: str
    key: str | None
    policy: Policy | None
    options: PredictOptions
    concurrency: int
    strip_metadata: bool

    def client(self, retry: RetryPolicy) -> AsyncTriageClient:
        try:
            return AsyncTriageClient(
                self.url, self.key, strip_metadata=self.strip_metadata, retry=retry
            )
        except SettingsError as error:
            raise click.UsageError(str(error)) from error


def run_session(
    session: Session,
    images: Sequence[Path],
    outputs: Outputs,
    settings_files: Sequence[Path],
    lesions: Path | None = None,
) -> None:
    """Sends all images, writes the outputs and prints the table.

    `settings_files`: the files of the key, the policy and the lesions, which no output may replace.
    `lesions`: as in `_lesions_of`. After SIGINT or SIGTERM the outputs hold the rows so far.

    Raises:
        ClickException: If a file has no decision.
    """
    selection = select_files(images)
    outputs.check([*selection.files, *settings_files])
    lesion_names = {} if lesions is None else _lesions_of(lesions, selection.files)
    for note in selection.notes:
        click.echo(printable(note), err=True)
    model, policy = asyncio.run(_model_and_policy(session))
    options = _with_defaults(session.options, policy)
    session = replace(session, options=options)
    rows: list[TriageRow] = []
    interrupt: BaseException | None = None
    try:
        asyncio.run(_send(session, selection.files, model.max_body_bytes, rows))
    except* (KeyboardInterrupt, SystemExit) as group:  # the rows so far are still written
        interrupt = group
        while isinstance(interrupt, BaseExceptionGroup):  # a task group of anyio wraps a signal
            interrupt = interrupt.exceptions[0]
    rows += [TriageRow(path, problem=_CANCELLED) for path in selection.files[len(rows) :]]
    rows = [replace(row, lesion=lesion_names.get(row.path)) for row in rows]
    try:
        # files first: printing fails if the reader of stdout has gone
        outputs.write(rows, policy)
    finally:
        print_table(rows, policy, sys.stdout, outputs.language)
    if interrupt is not None:
        raise interrupt
    problems = [row.problem for row in rows if row.problem is not None]
    if problems:
        reasons = (
            f"; {problem.detail}" for problem in problems if problem.code == Unreachable.code
        )
        raise click.ClickException(
            f"{len(problems)} of {len(rows)} files have no decision{next(reasons, '')}"
        )


def _lesions_of(table: Path, images: Sequence[Path]) -> dict[Path, str]:
    """The lesion of each image that has one.

    Args:
        table: A CSV file with the columns file, relative to its folder, and lesion; or _FOLDERS,
            for the folder of an image as its lesion.
        images: The files of the run.

    Raises:
        click.UsageError: For another table, for a file that is none of the images, and for a
            folder of a lesion in that of another one.
    """
    if table == _FOLDERS:
        folders = {path.parent for path in images}
        for folder in sorted(folders):
            for outer in folders.intersection(folder.parents):
                raise click.UsageError(
                    f"--lesions folders: {folder} with images is in {outer}, which has images too"
                )
        return {path: str(path.parent) for path in images}
    by_file = {path.resolve(): path for path in images}
    lesions: dict[Path, str] = {}
    try:
        reader = read_rows(table)
        if not {"file", "lesion"} <= set(reader.fieldnames or ()):
            raise click.UsageError(f"{table}: expected the columns file and lesion")
        for row in reader:
            file, lesion = row["file"], row["lesion"]
            where = f"{table}: line {reader.line_num}"
            if not file or not lesion:
                raise click.UsageError(f"{where}: expected a file and a lesion")
            path = by_file.get((table.parent / file).resolve())
            if path is None:
                raise click.UsageError(f"{where}: {file} is none of the images")
            if lesions.setdefault(path, lesion) != lesion:
                raise click.UsageError(f"{where}: {file} has another lesion before")
    except (OSError, csv.Error) as error:
        raise click.UsageError(f"{table}: expected a CSV file ({error})") from error
    return lesions


async def _model_and_policy(session: Session) -> tuple[ModelDetails, Policy]:
    """The model that answers and the policy that decides, without retries for a wrong address."""
    async with session.client(_FIRST_RETRY) as client:
        if client.proxy is not None:
            through = f"requests go through the proxy {client.proxy.url} of the environment"
            click.echo(printable(through, sys.stderr.encoding or "utf-8"), err=True)
        name = session.options.get("model") or (await client.models())[0].name
        model, described = await client.model(name), await client.policy()
    policy = session.policy or policy_of(described.policy, "the policy of the service")
    classes = [entry.name for entry in model.classes]
    missing = [name for name in policy.target.classes if name not in classes]
    if missing:
        raise PolicyError(
            f"the policy's target requires the classes {', '.join(missing)}; the model "
            f"{model.name} has {', '.join(classes)}"
        )
    return model, policy


def _with_defaults(options: PredictOptions, policy: Policy) -> PredictOptions:
    """Takes the mode and samples that the policy's threshold was set for."""
    mode, samples = default_sampling(policy.evidence, options.get("mode"), options.get("samples"))
    if mode != "stoch" and samples is not None:
        raise click.UsageError(
            f"expected --samples only with --mode stoch, got mode {mode} of the policy"
        )
    return {**options, "mode": mode, "samples": samples}


async def _send(
    session: Session, files: Sequence[Path], max_bytes: int, rows: list[TriageRow]
) -> None:
    with ProgressBar("triage", "files", len(files)) as display:
        async with (
            session.client(_RETRY) as client,
            aclosing(triage(session, client, files, max_bytes)) as run,
        ):
            async for row in run:
                rows.append(row)
                display.advance()


def triage(
    session: Session, client: AsyncTriageClient, files: Iterable[Path], max_bytes: int
) -> AsyncGenerator[TriageRow, None]:
    """Yields a row for each file, in order, with `session.concurrency` concurrent requests.

    The classes of `session.policy` must be those of the model. Files larger than `max_bytes` are
    not sent. After the service has become unreachable, no further requests are sent.
    """
    unreachable: Unreachable | None = None

    async def row_of(path: Path) -> TriageRow:
        nonlocal unreachable
        try:
            if unreachable is not None:
                raise unreachable
            content = await asyncio.to_thread(_read, path, max_bytes)
            result = await client.triage(content, **session.options)
        except Problem as problem:
            if isinstance(problem, Unreachable):
                unreachable = problem
            return TriageRow(path, problem=RowProblem(problem.code, str(problem)))
        policy = session.policy
        return TriageRow(path, result if policy is None else decided(result, policy))

    return map_ordered(row_of, files, session.concurrency)


def _read(path: Path, max_bytes: int) -> bytes:
    if path.is_file() and path.stat().st_size > max_bytes:
        raise BodyTooLarge(f"the service accepts at most {max_bytes:,} bytes")
    return image_bytes(path)
