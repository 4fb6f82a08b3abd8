"""A triage run: every file is asked about, and has exactly one row."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import (
    BodyTooLarge,
    Problem,
    Unreachable,
    UnreadableFile,
)
from eulerlora_client.contract.triage import ImageQuality
from eulerlora_client.policy.policy import Decision, Policy, PolicyError
from eulerlora_client.policy.quality import measure_quality
from eulerlora_client.sdk.async_client import AsyncTriageClient
from eulerlora_client.sdk.concurrency import in_order_async
from eulerlora_client.sdk.images import content_of
from eulerlora_client.sdk.requests import Question

FORMATS = ("JPEG", "PNG", "WEBP")
"""What is opened here: the formats that the service reads."""

NOT_ASKED = "not_asked"
QUALITY_UNKNOWN = "quality_unknown"
POLICY_MISMATCH = "policy_mismatch"


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no decision: a code for programs, and words for people."""

    code: str
    detail: str


@dataclass(frozen=True)
class TriageRow:
    """What came of one file: a decision, or the problem for which there is none."""

    path: Path
    prediction: Prediction | None = None
    quality: ImageQuality | None = None
    decision: Decision | None = None
    problem: RowProblem | None = None


def triage(
    files: Iterable[Path],
    client: AsyncTriageClient,
    question: Question,
    policy: Policy,
    most_bytes: int,
    concurrency: int,
) -> AsyncGenerator[TriageRow, None]:
    """A row for each file, in their order; `concurrency` are asked about at the same time.

    most_bytes: larger files are not sent. Once the service cannot be reached any more, nothing is
    asked.
    """
    run = _Run(client, question, policy, most_bytes)
    return in_order_async(run.row_of, files, concurrency)


def not_asked(path: Path) -> TriageRow:
    """The row of a file when the run ended before it had its answer."""
    return TriageRow(path, problem=RowProblem(NOT_ASKED, "the run ended before its answer came"))


@dataclass
class _Run:
    client: AsyncTriageClient
    question: Question
    policy: Policy
    most_bytes: int
    gone: Unreachable | None = None

    async def row_of(self, path: Path) -> TriageRow:
        """The row of one file; never raises for what the file or the service may do."""
        if self.gone is not None:
            return _without_answer(path, self.gone)
        try:
            content = await asyncio.to_thread(_read, path, self.most_bytes)
            prediction = await self.client.predict(content, **asdict(self.question))
        except Problem as problem:
            if isinstance(problem, Unreachable):
                self.gone = problem
            return _without_answer(path, problem)
        return await asyncio.to_thread(decided, path, content, prediction, self.policy)


def decided(path: Path, content: bytes, prediction: Prediction, policy: Policy) -> TriageRow:
    """The row of a file that was answered, with the policy's decision on it."""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            quality = measure_quality(image)
    except Exception as error:  # what Pillow raises on hostile bytes has no common base
        detail = f"its quality cannot be measured ({type(error).__name__})"
        return TriageRow(path, prediction, problem=RowProblem(QUALITY_UNKNOWN, detail))
    try:
        return TriageRow(path, prediction, quality, policy.decide(prediction, quality))
    except PolicyError as error:
        problem = RowProblem(POLICY_MISMATCH, str(error))
        return TriageRow(path, prediction, quality, problem=problem)


def _without_answer(path: Path, problem: Problem) -> TriageRow:
    return TriageRow(path, problem=RowProblem(problem.code, str(problem)))


def _read(path: Path, most_bytes: int) -> bytes:
    """Raises BodyTooLarge where the service would, without reading the file.

    Raises UnreadableFile for a pipe or a device too: reading it might never end.
    """
    if path.exists() and not path.is_file():
        raise UnreadableFile("it is not a regular file")
    if path.is_file() and path.stat().st_size > most_bytes:
        raise BodyTooLarge(f"at most {most_bytes:,} bytes are read")
    return content_of(path)
