"""Sort keys of rows, and the model settings behind them."""

from pathlib import Path

from eulerlora_client.contract.answers import StandardError
from eulerlora_client.report.html import (
    counts_by_settings,
    describe_settings,
    ranks_by_name,
    sort_keys,
)
from eulerlora_client.report.ranking import TriageRow, ranked
from tests.eulerlora_client.triage_rows import (
    SHARP,
    failed,
    fixed_policy,
    make_prediction,
    passes,
    triaged,
)

POLICY = fixed_policy()


def row(path: str) -> TriageRow:
    return triaged(Path(path), make_prediction(passes("nv", 7, 0.2, seed=0)), SHARP, POLICY)


def test_names_are_ranked_ignoring_case() -> None:
    rows = ranked([row(name) for name in ("B", "a", "c")])
    assert ranks_by_name(rows) == {"a": 0, "B": 1, "c": 2}


def test_a_failed_row_sorts_only_by_name_and_urgency() -> None:
    (failed_row,) = ranked([failed(Path("a"), "timed_out", "no answer")])
    keys = sort_keys(failed_row, {"a": 0})
    assert {key for key, value in keys.items() if value is not None} == {"name", "urgency"}


def test_predictions_are_counted_by_model_and_options() -> None:
    fixed = make_prediction(passes("nv", 7, 0.2, 0, 2), mode="det", samples=1)
    error = StandardError(msp=0.01, entropy=0.02)
    auto = [
        make_prediction(passes("nv", 7, 0.2, 0, count), samples=count, standard_error=error)
        for count in (2, 8)
    ]
    rows = [
        triaged(Path("det"), fixed, SHARP, POLICY),
        *(triaged(Path(str(prediction.samples)), prediction, SHARP, POLICY) for prediction in auto),
        *(row(name) for name in "abc"),
        failed(Path("c"), "timed_out", "no answer"),
    ]
    counts = counts_by_settings(ranked(rows))
    assert [(settings.mode, settings.samples, count) for settings, count in counts.items()] == [
        ("stoch", 4, 3),
        ("stoch", "auto", 2),
        ("det", 1, 1),
    ]
    descriptions = [describe_settings(settings) for settings in counts]
    assert descriptions[1] == "stoch, as many samples as each image needed"
