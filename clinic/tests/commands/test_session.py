"""One row for each file, also for faults of the file or the service."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.runs import mel_policy, result_of
from eulerlora_clinic.commands.session import Session, triage
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract.answers import Disposition, TriageResult
from eulerlora_contract.problems import Overloaded, Problem, Unreachable
from tests.eulerlora_client.runs import random_png

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
    files: list[Path], client: FakeClient, max_bytes: int = MEGABYTE, policy: Policy | None = None
) -> list[TriageRow]:
    async def all_rows() -> list[TriageRow]:
        session = Session(
            url="", key=None, policy=policy, options={"mode": "stoch", "samples": 2},
            concurrency=1, strip_metadata=False,
        )  # fmt: skip
        run = triage(session, client, files, max_bytes)  # type: ignore[arg-type]
        return [row async for row in run]

    return asyncio.run(all_rows())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(random_png(number))
    return paths


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
    malignant = policy.target.model_copy(update={"routine": 0.01, "urgent": 0.01})
    strict = policy.model_copy(update={"target": malignant})
    (row,) = rows_of(files[:1], FakeClient(ROUTINE), policy=strict)
    assert row.result is not None
    assert (row.result.disposition, row.result.title) == (Disposition.URGENT, "Urgent")
    assert (row.result.policy.hash, row.result.target.urgent) == (strict.hash, 0.01)
    assert row.result.prediction == ROUTINE.prediction
    assert row.result.quality == ROUTINE.quality
    assert row.result.class_names == ROUTINE.class_names


def test_a_pipe_is_not_read(files: list[Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    first, second = rows_of([pipe, files[0]], FakeClient(ROUTINE))
    assert first.problem is not None
    assert (first.problem.code, second.problem) == ("unreadable_file", None)
