"""One row for each file, also for faults of the file or the service, and the table."""

import asyncio
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.runs import decided, mel_policy, result_of
from clinic.tests.triage_rows import failed
from eulerlora_client.client import PredictOptions
from eulerlora_clinic.commands.session import Session, print_table, summary, triage
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.policy.results import NOT_ASSESSED, NOT_FITTED, TITLES, WARNING
from eulerlora_clinic.report.ranking import TriageRow, ranked
from eulerlora_contract.answers import Disposition, Reason, TriageResult
from eulerlora_contract.problems import Overloaded, Problem, Unreachable
from tests.eulerlora_client.runs import random_png

OPTIONS: PredictOptions = {"mode": "stoch", "samples": 2}
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
        session = Session("", None, policy, OPTIONS, concurrency=1, strip_metadata=False)
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


ROWS = [
    decided("routine.png", Disposition.ROUTINE, 0.01),
    failed(Path("broken.png")),
    decided("retake.png", Disposition.RETAKE, 0.01, Reason.TOO_DARK),
    decided("urgent.png", Disposition.URGENT, 0.3, Reason.TARGET_CLASSES),
    decided("refer.png", Disposition.REFER, 0.01, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    decided("more urgent.png", Disposition.URGENT, 0.6, Reason.TARGET_CLASSES),
]
ORDER = ["more urgent", "urgent", "refer", "retake", "broken", "routine"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def printed(rows: list[TriageRow]) -> str:
    file = StringIO()
    print_table(rows, mel_policy(), file)
    return file.getvalue()


def printed_on_terminal(
    rows: list[TriageRow], monkeypatch: pytest.MonkeyPatch, columns: int
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    print_table(rows, mel_policy(), terminal)
    return terminal.getvalue()


def test_the_lines_are_ranked() -> None:
    lines = [line for line in printed(ROWS).splitlines() if ".png" in line]
    assert [line.rstrip().split("  ")[-1].strip().removesuffix(".png") for line in lines] == ORDER


def test_a_line_has_the_pathway_the_label_and_the_reasons() -> None:
    (refer,) = [line for line in printed(ROWS).splitlines() if "refer.png" in line]
    name = "melanocytic nevus 0.800"
    for text in (TITLES[Disposition.REFER], "0.010", name, "0.50", "high entropy, out of distrib"):
        assert text in refer
    (broken,) = [line for line in printed(ROWS).splitlines() if "broken.png" in line]
    assert NOT_ASSESSED in broken
    assert "it is broken" in broken


def test_the_line_of_an_unfamiliar_image_has_no_figure_and_no_class() -> None:
    row = decided("house.png", Disposition.UNFAMILIAR, 0.9, Reason.UNFAMILIAR, Reason.HIGH_ENTROPY)
    assert row.result is not None
    prediction = row.result.prediction.model_copy(update={"unfamiliar": True})
    result = row.result.model_copy(update={"prediction": prediction})
    text = printed([TriageRow(row.path, result)])
    (line,) = [line for line in text.splitlines() if "house.png" in line]
    assert line.split() == ["Unfamiliar", "unfamiliar", "house.png"]


def test_the_counts_and_the_warning_follow_the_table() -> None:
    counts = summary(ranked(ROWS))
    assert counts == (
        "6 files: 2 urgent, 0 unfamiliar, 1 refer, 1 retake, 1 routine, 1 not assessed"
    )
    text = " ".join(printed(ROWS).split())
    assert text.index(counts) < text.index(NOT_FITTED) < text.index(WARNING)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [*ROWS, decided("long " * 20 + ".png", Disposition.ROUTINE)]
    lines = printed_on_terminal(rows, monkeypatch, columns).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert words.count("long") == 20


def test_names_of_a_service_send_nothing_to_the_terminal() -> None:
    result = ROUTINE.model_copy(update={"class_names": {"mel": "mela\x1b]0;title\x07noma"}})
    text = printed([TriageRow(Path("a.png"), result)])
    assert "\\x1b]0;title\\x07" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    print_table(ROWS, mel_policy(), terminal)
    assert "\x1b" not in terminal.getvalue()
