"""One row per file, also for faults of the file or the service."""

import asyncio
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Overloaded, Problem, Unreachable
from eulerlora_client.contract.triage import Disposition
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.quality import measure_quality
from eulerlora_client.sdk.requests import PredictOptions
from eulerlora_client.triage.run import TriageRow, cancelled_row, decided_row, triage
from tests.eulerlora_client.conftest import PREDICTION
from tests.eulerlora_client.runs import mel_policy, random_png

OPTIONS = PredictOptions("stoch", 2, detail=True)
PREDICTED = Prediction.model_validate(PREDICTION)
MEGABYTE = 1_000_000


class FakeClient:
    """Returns the given results in turn, the last one forever, and records the requests."""

    def __init__(self, *results: Prediction | Problem) -> None:
        self.results = list(results)
        self.requests: list[tuple[bytes, dict[str, Any]]] = []

    async def predict(self, content: bytes, **options: Any) -> Prediction:
        self.requests.append((content, options))
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Problem):
            raise result
        return result


def rows_of(files: list[Path], client: FakeClient, max_bytes: int = MEGABYTE) -> list[TriageRow]:
    async def all_rows() -> list[TriageRow]:
        run = triage(files, client, OPTIONS, mel_policy(), max_bytes, 1)  # type: ignore[arg-type]
        return [row async for row in run]

    return asyncio.run(all_rows())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six images."""
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(random_png(number))
    return paths


def test_every_file_is_sent_and_gets_a_decision(files: list[Path]) -> None:
    client = FakeClient(PREDICTED)
    rows = rows_of(files, client)
    assert [row.path for row in rows] == files
    assert {row.decision.disposition for row in rows if row.decision} == {Disposition.URGENT}
    assert [content for content, _ in client.requests] == [path.read_bytes() for path in files]
    assert client.requests[0][1] == {
        "mode": "stoch", "samples": 2, "seed": None, "model": None, "detail": True, "coverage": None
    }  # fmt: skip


def test_a_bad_file_does_not_affect_the_others(files: list[Path]) -> None:
    files[1].unlink()
    files[3].unlink()
    files[3].mkdir()
    files[4].write_bytes(b"x" * 100_000)
    rows = rows_of(files, FakeClient(PREDICTED), max_bytes=90_000)
    codes = [row.problem.code if row.problem else None for row in rows]
    assert codes == [None, "unreadable_file", None, "unreadable_file", "body_too_large", None]


def test_after_a_problem_the_next_file_is_sent(files: list[Path]) -> None:
    client = FakeClient(Overloaded("try later", code="overloaded"), PREDICTED)
    first, *others = rows_of(files, client)
    assert first.problem is not None
    assert (first.problem.code, first.problem.detail) == (
        "overloaded",
        "The service is overloaded: try later",
    )
    assert all(row.decision for row in others)


def test_after_an_unreachable_service_nothing_is_sent(files: list[Path]) -> None:
    client = FakeClient(PREDICTED, Unreachable("no connection"))
    rows = rows_of(files, client)
    assert len(client.requests) == 2
    assert [row.problem.code if row.problem else None for row in rows] == [
        None,
        *["unreachable"] * 5,
    ]


def test_an_image_without_quality_has_no_decision() -> None:
    row = decided_row(Path("a"), b"GIF89a", PREDICTED, mel_policy())
    assert row.problem is not None
    assert (row.prediction, row.decision, row.problem.code) == (PREDICTED, None, "quality_unknown")


def test_a_model_without_the_policy_classes_has_no_decision() -> None:
    row = decided_row(Path("a"), random_png(), PREDICTED, default_policy())
    assert row.problem is not None
    assert (row.decision, row.problem.code) == (None, "policy_mismatch")
    assert "akiec" in row.problem.detail


def test_quality_is_measured_on_the_bytes_that_were_sent() -> None:
    content = random_png(5)
    row = decided_row(Path("nowhere"), content, PREDICTED, mel_policy())
    assert row.quality == measure_quality(Image.open(BytesIO(content)))


def test_a_cancelled_file_has_a_problem() -> None:
    row = cancelled_row(Path("a"))
    assert row.problem is not None
    assert (row.path, row.problem.code) == (Path("a"), "not_asked")


def test_a_pipe_is_not_read(files: list[Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    first, second = rows_of([pipe, files[0]], FakeClient(PREDICTED))
    assert first.problem is not None
    assert (first.problem.code, second.problem) == ("unreadable_file", None)
