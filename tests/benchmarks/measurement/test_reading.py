"""Readings in result files and in the report."""

import pytest
import torch
from pydantic import ValidationError

from benchmarks import report
from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.measurement.results_file import append, read

MEASUREMENT = Measurement(
    name="lost requests",
    what="counted",
    unit="seconds",
    target=Target(bound="at most", value=0.002),
    libraries=("fastapi",),
)


def reading(value: float = 0.0015) -> Reading:
    return MEASUREMENT.reading(value, [0.001, 0.002], torch.device("cpu"), {"requests": 2})


def test_a_results_file_can_contain_readings(tmp_path) -> None:
    written = reading()
    append(tmp_path / "lines.jsonl", written)
    assert read(tmp_path / "lines.jsonl") == [written]
    (tmp_path / "other.jsonl").write_text('{"name": "neither"}\n')
    with pytest.raises(ValidationError):
        read(tmp_path / "other.jsonl")


@pytest.mark.parametrize(("value", "cell"), [(0.0015, "**1.5 ms** ✓"), (0.0025, "**2.5 ms** ✗")])
def test_the_row_of_a_reading_has_target_value_and_spread_in_its_unit(value, cell) -> None:
    (row,) = [line for line in report.markdown([reading(value)]).splitlines() if "lost" in line]
    assert [column.strip() for column in row.strip("|").split("|")] == [
        "lost requests", "≤ 2 ms", cell, "counted", "", "1 ms [1.25 ms, 1.5 ms, 1.75 ms] 2 ms (2)",
    ]  # fmt: skip


def test_a_reading_has_the_versions_of_its_libraries() -> None:
    assert set(reading().versions) == {"python", "torch", "fastapi"}
