"""What rows are sorted by, and the questions behind them."""

from pathlib import Path

from eulerlora_client.contract.predictions import StandardError
from eulerlora_client.report.html import describe_settings
from eulerlora_client.report.rows import counts_by_settings, ranks_by_name, sort_keys
from eulerlora_client.triage.ranking import ranked
from eulerlora_client.triage.run import TriageRow
from tests.eulerlora_client.triage_rows import (
    SHARP,
    failed,
    passes,
    prediction,
    steady_policy,
    triaged,
)

POLICY = steady_policy()


def row(path: str) -> TriageRow:
    return triaged(Path(path), prediction(passes("nv", 7, 0.2, seed=0)), SHARP, POLICY)


def test_names_are_ranked_whatever_their_case() -> None:
    found = ranked([row(name) for name in ("B", "a", "c")], POLICY)
    assert ranks_by_name(found) == {"a": 0, "B": 1, "c": 2}


def test_a_failed_row_sorts_only_by_name_and_urgency() -> None:
    (found,) = ranked([failed(Path("a"), "timed_out", "no answer")], POLICY)
    keys = sort_keys(found, {"a": 0})
    assert {key for key, value in keys.items() if value is not None} == {"name", "urgency"}


def test_questions_are_told_apart_and_counted() -> None:
    fixed = prediction(passes("nv", 7, 0.2, 0, 2), mode="det", samples=1)
    error = StandardError(msp=0.01, entropy=0.02)
    auto = [
        prediction(passes("nv", 7, 0.2, 0, count), samples=count, standard_error=error)
        for count in (2, 8)
    ]
    rows = [
        triaged(Path("det"), fixed, SHARP, POLICY),
        *(triaged(Path(str(each.samples)), each, SHARP, POLICY) for each in auto),
        *(row(name) for name in "abc"),
        failed(Path("c"), "timed_out", "no answer"),
    ]
    found = counts_by_settings(ranked(rows, POLICY))
    assert [(each.mode, each.samples, count) for each, count in found.items()] == [
        ("stoch", 4, 3),
        ("stoch", "auto", 2),
        ("det", 1, 1),
    ]
    words = [describe_settings(each) for each in found]
    assert words[1] == "stoch, as many samples as each image needed"
