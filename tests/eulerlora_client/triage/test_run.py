"""One row per file, also for faults of the file or the service."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from eulerlora_client.commands.session import cancelled_row, triage
from eulerlora_client.contract.answers import Disposition, TriageResult
from eulerlora_client.contract.problems import Overloaded, Problem, Unreachable
from eulerlora_client.policy.policy import Policy
from eulerlora_client.report.ranking import TriageRow
from eulerlora_client.sdk.requests import TriageOptions
from tests.eulerlora_client.runs import mel_policy, random_png, result_of

OPTIONS = TriageOptions("stoch", 2)
ROUTINE = result_of(Disposition.ROUTINE)
MEGABYTE = 1_000_000


class FakeClient:
    """Returns the given results in turn, the last one forever, and records the requests."""

    def __init__(self, *results: TriageResult | Problem) -> None:
        self.results = list(results)
        self.requests: list[tuple[bytes, dict[str, Any]]] = []

    async def triage(self, content: bytes, **options: Any) -> TriageResult:
        self.requests.append((content, options))
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Problem):
            raise result
        return result


def rows_of(
    files: list[Path],
    client: FakeClient,
    max_bytes: int = MEGABYTE,
    policy: Policy | None = None,
) -> list[TriageRow]:
    async def all_rows() -> list[TriageRow]:
        run = triage(files, client, OPTIONS, policy, max_bytes, 1)  # type: ignore[arg-type]
        return [row async for row in run]

    return asyncio.run(all_rows())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six images."""
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(random_png(number))
    return paths


def test_every_file_is_sent_and_gets_the_result_of_the_service(files: list[Path]) -> None:
    client = FakeClient(ROUTINE)
    rows = rows_of(files, client)
    assert [row.path for row in rows] == files
    assert all(row.result is ROUTINE for row in rows)
    assert [content for content, _ in client.requests] == [path.read_bytes() for path in files]
    assert client.requests[0][1] == {
        "mode": "stoch", "samples": 2, "seed": None, "model": None, "coverage": None
    }  # fmt: skip


def test_a_bad_file_does_not_affect_the_others(files: list[Path]) -> None:
    files[1].unlink()
    files[3].unlink()
    files[3].mkdir()
    files[4].write_bytes(b"x" * 100_000)
    rows = rows_of(files, FakeClient(ROUTINE), max_bytes=90_000)
    codes = [row.problem.code if row.problem else None for row in rows]
    assert codes == [None, "unreadable_file", None, "unreadable_file", "body_too_large", None]


def test_after_a_problem_the_next_file_is_sent(files: list[Path]) -> None:
    client = FakeClient(Overloaded("try later", code="overloaded"), ROUTINE)
    first, *others = rows_of(files, client)
    assert first.problem is not None
    assert (first.problem.code, first.problem.detail) == (
        "overloaded",
        "The service is overloaded: try later",
    )
    assert all(row.result for row in others)


def test_after_an_unreachable_service_nothing_is_sent(files: list[Path]) -> None:
    client = FakeClient(ROUTINE, Unreachable("no connection"))
    rows = rows_of(files, client)
    assert len(client.requests) == 2
    assert [row.problem.code if row.problem else None for row in rows] == [
        None,
        *["unreachable"] * 5,
    ]


def test_another_policy_decides_on_the_prediction_and_quality_of_the_service(
    files: list[Path],
) -> None:
    policy = mel_policy()
    malignant = policy.malignant.model_copy(update={"urgent": 0.01})
    strict = policy.model_copy(update={"malignant": malignant})
    (row,) = rows_of(files[:1], FakeClient(ROUTINE), policy=strict)
    assert row.result is not None
    assert (row.result.disposition, row.result.title) == (Disposition.URGENT, "Urgent")
    assert (row.result.policy.hash, row.result.malignant.urgent) == (strict.hash, 0.01)
    assert row.result.prediction == ROUTINE.prediction
    assert row.result.quality == ROUTINE.quality
    assert row.result.class_names == ROUTINE.class_names


def test_a_file_of_any_content_is_left_to_the_service(tmp_path: Path) -> None:
    dicom = tmp_path / "1.dcm"
    dicom.write_bytes(bytes(128) + b"DICM" + bytes(64))
    client = FakeClient(ROUTINE)
    (row,) = rows_of([dicom], client)
    assert (row.result, row.problem) == (ROUTINE, None)
    assert client.requests[0][0] == dicom.read_bytes()


def test_a_cancelled_file_has_a_problem() -> None:
    row = cancelled_row(Path("a"))
    assert row.problem is not None
    assert (row.path, row.problem.code) == (Path("a"), "not_asked")


def test_a_pipe_is_not_read(files: list[Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    first, second = rows_of([pipe, files[0]], FakeClient(ROUTINE))
    assert first.problem is not None
    assert (first.problem.code, second.problem) == ("unreadable_file", None)
