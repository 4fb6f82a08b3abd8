"""A triage run: sends every file to the service and returns one row per file."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path

from PIL import Image

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import BodyTooLarge, Problem, Unreachable, UnreadableFile
from eulerlora_client.contract.triage import ImageQuality
from eulerlora_client.errors import PolicyError
from eulerlora_client.policy.policy import Decision, Policy
from eulerlora_client.policy.quality import measure_quality
from eulerlora_client.sdk.async_client import AsyncTriageClient
from eulerlora_client.sdk.concurrency import map_ordered_async
from eulerlora_client.sdk.images import image_bytes
from eulerlora_client.sdk.requests import PredictOptions

FORMATS = ("JPEG", "PNG", "WEBP")
"""Formats that are decoded here: those that the service reads."""

NOT_ASKED = "not_asked"
QUALITY_UNKNOWN = "quality_unknown"
POLICY_MISMATCH = "policy_mismatch"


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no decision: a code for programs, and a text for people."""

    code: str
    detail: str


@dataclass(frozen=True)
class TriageRow:
    """The result for one file: a decision, or the problem that prevented it."""

    path: Path
    prediction: Prediction | None = None
    quality: ImageQuality | None = None
    decision: Decision | None = None
    problem: RowProblem | None = None


def triage(
    files: Iterable[Path],
    client: AsyncTriageClient,
    options: PredictOptions,
    policy: Policy,
    max_bytes: int,
    concurrency: int,
) -> AsyncGenerator[TriageRow, None]:
    """Yields a row for each file, in order, with `concurrency` concurrent requests.

    max_bytes: larger files are not sent. After the service has become unreachable, no further
    requests are sent.
    """
    run = _Run(client, options, policy, max_bytes)
    return map_ordered_async(run.row_for, files, concurrency)


def cancelled_row(path: Path) -> TriageRow:
    """Returns the row of a file whose prediction was missing when the run ended."""
    return TriageRow(path, problem=RowProblem(NOT_ASKED, "the run ended before its prediction"))


@dataclass
class _Run:
    client: AsyncTriageClient
    options: PredictOptions
    policy: Policy
    max_bytes: int
    unreachable: Unreachable | None = None

    async def row_for(self, path: Path) -> TriageRow:
        """Returns the row of a file, with a problem for each fault of the file or the service."""
        if self.unreachable is not None:
            return _problem_row(path, self.unreachable)
        try:
            content = await asyncio.to_thread(_read, path, self.max_bytes)
            prediction = await self.client.predict(content, **asdict(self.options))
        except Problem as problem:
            if isinstance(problem, Unreachable):
                self.unreachable = problem
            return _problem_row(path, problem)
        return await asyncio.to_thread(decided_row, path, content, prediction, self.policy)


def decided_row(path: Path, content: bytes, prediction: Prediction, policy: Policy) -> TriageRow:
    """Returns the row of a file with a prediction: measures its quality and applies the policy."""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            quality = measure_quality(image)
    except Exception as error:  # Pillow's errors for hostile bytes have no common base class
        detail = f"its quality cannot be measured ({type(error).__name__})"
        return TriageRow(path, prediction, problem=RowProblem(QUALITY_UNKNOWN, detail))
    return with_decision(TriageRow(path, prediction, quality), policy)


def with_decision(row: TriageRow, policy: Policy) -> TriageRow:
    """Returns the row with the decision of a policy; unchanged without prediction or quality."""
    if row.prediction is None or row.quality is None:
        return row
    try:
        decision = policy.decide(row.prediction, row.quality)
    except PolicyError as error:
        problem = RowProblem(POLICY_MISMATCH, str(error))
        return replace(row, decision=None, problem=problem)
    return replace(row, decision=decision, problem=None)


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
