"""A triage run: sends every file to the service and returns one row per file."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from eulerlora_client.contract.problems import BodyTooLarge, Problem, Unreachable, UnreadableFile
from eulerlora_client.policy.policy import Policy
from eulerlora_client.sdk.async_client import AsyncTriageClient
from eulerlora_client.sdk.concurrency import map_ordered_async
from eulerlora_client.sdk.images import image_bytes
from eulerlora_client.sdk.requests import TriageOptions
from eulerlora_client.triage.result import RowProblem, TriageRow, decided

NOT_ASKED = "not_asked"


def triage(
    files: Iterable[Path],
    client: AsyncTriageClient,
    options: TriageOptions,
    policy: Policy | None,
    max_bytes: int,
    concurrency: int,
) -> AsyncGenerator[TriageRow, None]:
    """Yields a row for each file, in order, with `concurrency` concurrent requests.

    policy: decides in place of the service's; it must name classes that the model has. max_bytes:
    larger files are not sent. After the service has become unreachable, no further requests are
    sent.
    """
    run = _Run(client, options, policy, max_bytes)
    return map_ordered_async(run.row_for, files, concurrency)


def cancelled_row(path: Path) -> TriageRow:
    """Returns the row of a file whose result was missing when the run ended."""
    return TriageRow(path, problem=RowProblem(NOT_ASKED, "the run ended before its result"))


@dataclass
class _Run:
    client: AsyncTriageClient
    options: TriageOptions
    policy: Policy | None
    max_bytes: int
    unreachable: Unreachable | None = None

    async def row_for(self, path: Path) -> TriageRow:
        """Returns the row of a file, with a problem for each fault of the file or the service."""
        if self.unreachable is not None:
            return _problem_row(path, self.unreachable)
        try:
            content = await asyncio.to_thread(_read, path, self.max_bytes)
            result = await self.client.triage(content, **asdict(self.options))
        except Problem as problem:
            if isinstance(problem, Unreachable):
                self.unreachable = problem
            return _problem_row(path, problem)
        return TriageRow(path, result if self.policy is None else decided(result, self.policy))


def _problem_row(path: Path, problem: Problem) -> TriageRow:
    return TriageRow(path, problem=RowProblem(problem.code, str(problem)))


def _read(path: Path, max_bytes: int) -> bytes:
    """Returns the bytes of a file. Raises BodyTooLarge without reading a file that is too large.

    Raises UnreadableFile for pipes and devices: reading them might never end.
    """
    if path.exists() and not path.is_file():
        raise UnreadableFile("it is not a regular file")
    if path.is_file() and path.stat().st_size > max_bytes:
        raise BodyTooLarge(f"the service accepts at most {max_bytes:,} bytes")
    return image_bytes(path)
