"""Measurements: times in alternation, and results with spread and target."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eulerlora_lab.benchmarks import timing
from eulerlora_lab.benchmarks.results import Result, Side, Target, comparison, report
from eulerlora_lab.benchmarks.timing import alternating_seconds

CPU = torch.device("cpu")


def test_the_ratio_is_of_medians_and_its_spread_of_paired_runs() -> None:
    ours, reference = Side("a", [1.0, 2.0, 9.0]), Side("b", [4.0, 4.0, 6.0])
    result = comparison("a / b", ours, reference)
    assert (result.value, result.measured) == (2.0 / 4.0, [0.25, 0.5, 1.5])


def test_results_are_printed_as_a_table(capsys) -> None:
    sides = Side("a", [0.001]), Side("b", [0.002])
    lost = Result(
        "lost requests", "counted", 0.0025, [0.001, 0.002], target=Target("at most", 0.002)
    )
    report([comparison("a / b", *sides, Target("at most", 0.5)), lost])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [
        ["a / b", "at most 0.50", "**0.50** ✓", "1 ms (a)", "2 ms (b)",
         "0.50 [0.50, 0.50, 0.50] 0.50 (1)"],
        ["lost requests", "at most 2 ms", "**2.5 ms** ✗", "counted", "",
         "1 ms [1.25 ms, 1.5 ms, 1.75 ms] 2 ms (2)"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "met"), [("at most", [True, True, False]), ("at least", [False, True, True])]
)
def test_a_target_is_met_up_to_its_bound(bound: str, met: list[bool]) -> None:
    target = Target(bound=bound, value=0.8)
    assert [target.met_by(ratio) for ratio in (0.7, 0.8, 0.9)] == met


def test_functions_alternate_after_the_warm_up() -> None:
    order = []
    works = [lambda name=name: order.append(name) for name in "AB"]
    seconds = alternating_seconds(works, repeats=2, warmups=1, device=CPU)
    assert "".join(order) == "AB" + "ABAB"
    assert [len(times) for times in seconds] == [2, 2]


def test_seconds_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert alternating_seconds([lambda: wait(1), lambda: wait(4)], 2, 0, CPU) == [[1, 1], [4, 4]]


def test_results_are_added_to_a_file_as_they_come(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    for name in ("first", "second"):
        report([Result(name, "ours", 0.5, [0.25, 0.75])], out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["name"], line["measured"]) for line in lines] == [
        ("first", [0.25, 0.75]), ("second", [0.25, 0.75]),
    ]  # fmt: skip
