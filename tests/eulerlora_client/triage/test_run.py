"""One row for each file, whatever the file or the service does."""

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

STOCH = PredictOptions("stoch", 2, detail=True)
FOUND = Prediction.model_validate(PREDICTION)
MEGABYTE = 1_000_000


class StandIn:
    """Answers as told, in turn; the last for ever. Remembers what it was asked."""

    def __init__(self, *answers: Prediction | Problem) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[bytes, dict[str, Any]]] = []

    async def predict(self, content: bytes, **question: Any) -> Prediction:
        self.asked.append((content, question))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Problem):
            raise answer
        return answer


def rows_of(files: list[Path], client: StandIn, most_bytes: int = MEGABYTE) -> list[TriageRow]:
    async def all_of_them() -> list[TriageRow]:
        found = triage(files, client, STOCH, mel_policy(), most_bytes, 1)  # type: ignore[arg-type]
        return [row async for row in found]

    return asyncio.run(all_of_them())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six pictures."""
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(random_png(number))
    return paths


def test_every_file_is_asked_about_and_decided_row(files: list[Path]) -> None:
    client = StandIn(FOUND)
    rows = rows_of(files, client)
    assert [row.path for row in rows] == files
    assert {row.decision.disposition for row in rows if row.decision} == {Disposition.URGENT}
    assert [content for content, _ in client.asked] == [path.read_bytes() for path in files]
    assert client.asked[0][1] == {
        "mode": "stoch", "samples": 2, "seed": None, "model": None, "detail": True
    }  # fmt: skip


def test_what_is_wrong_with_one_file_is_its_own(files: list[Path]) -> None:
    files[1].unlink()
    files[3].unlink()
    files[3].mkdir()
    files[4].write_bytes(b"x" * 100_000)
    rows = rows_of(files, StandIn(FOUND), most_bytes=90_000)
    codes = [row.problem.code if row.problem else None for row in rows]
    assert codes == [None, "unreadable_file", None, "unreadable_file", "body_too_large", None]


def test_a_problem_of_the_service_is_told_and_the_next_file_asked_about(files: list[Path]) -> None:
    client = StandIn(Overloaded("try later", code="overloaded"), FOUND)
    first, *others = rows_of(files, client)
    assert first.problem is not None
    assert (first.problem.code, first.problem.detail) == (
        "overloaded",
        "The service is overloaded: try later",
    )
    assert all(row.decision for row in others)


def test_once_the_service_is_gone_nothing_is_asked(files: list[Path]) -> None:
    client = StandIn(FOUND, Unreachable("nobody"))
    rows = rows_of(files, client)
    assert len(client.asked) == 2
    assert [row.problem.code if row.problem else None for row in rows] == [
        None,
        *["unreachable"] * 5,
    ]


def test_what_the_service_reads_and_we_cannot_measure_has_no_decision() -> None:
    row = decided_row(Path("a"), b"GIF89a", FOUND, mel_policy())
    assert row.problem is not None
    assert (row.prediction, row.decision, row.problem.code) == (FOUND, None, "quality_unknown")


def test_a_model_that_the_policy_does_not_know_has_no_decision() -> None:
    row = decided_row(Path("a"), random_png(), FOUND, default_policy())
    assert row.problem is not None
    assert (row.decision, row.problem.code) == (None, "policy_mismatch")
    assert "akiec" in row.problem.detail


def test_quality_is_of_the_bytes_that_were_sent() -> None:

    content = random_png(5)
    row = decided_row(Path("nowhere"), content, FOUND, mel_policy())
    assert row.quality == measure_quality(Image.open(BytesIO(content)))


def test_a_file_that_was_not_asked_about_says_so() -> None:
    row = cancelled_row(Path("a"))
    assert row.problem is not None
    assert (row.path, row.problem.code) == (Path("a"), "not_asked")


def test_a_pipe_is_not_waited_for(files: list[Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    first, second = rows_of([pipe, files[0]], StandIn(FOUND))
    assert first.problem is not None
    assert (first.problem.code, second.problem) == ("unreadable_file", None)
