"""Ratios, spreads and targets of results."""

import pytest
import torch
from pydantic import ValidationError

from benchmarks.measurement.result import Comparison, Result, Spread, Target

CPU = torch.device("cpu")
COMPARISON = Comparison(
    name="a / b", ours="a", reference="b", target=Target(bound="at most", value=0.5)
)


def test_the_ratio_is_of_medians_and_its_spread_of_paired_runs() -> None:
    result = COMPARISON.result([1.0, 2.0, 9.0], [4.0, 4.0, 6.0], CPU, {"images": 1})
    assert result.ratio == 2.0 / 4.0
    assert (result.ratio_spread.minimum, result.ratio_spread.maximum) == (0.25, 1.5)
    assert result.ours.spread.repeats == 3


def test_a_ratio_of_rates_includes_the_work() -> None:
    result = COMPARISON.result([2.0], [1.0], CPU, {}, work=(30.0, 20.0))
    assert result.ratio == (30 / 2) / (20 / 1)
    assert result.ratio_spread.median == result.ratio


def test_a_result_can_be_read_from_its_json() -> None:
    result = COMPARISON.result([1.0], [2.0], CPU, {"images": 1})
    line = result.model_dump_json()
    assert "\n" not in line
    assert Result.model_validate_json(line) == result
    with pytest.raises(ValidationError):
        Result.model_validate_json(line[:-2])


def test_a_result_has_machine_versions_and_date() -> None:
    result = COMPARISON.result([1.0], [2.0], CPU, {})
    assert result.machine.gpu is None
    assert result.machine.threads == torch.get_num_threads()
    assert result.machine.cpu
    assert result.versions.keys() == {"python", "torch", "torchvision", "peft", "transformers"}
    assert result.versions["torch"] == torch.__version__
    assert result.date.tzinfo is not None


@pytest.mark.parametrize(
    ("bound", "met"), [("at most", [True, True, False]), ("at least", [False, True, True])]
)
def test_a_target_is_met_up_to_its_bound(bound: str, met: list[bool]) -> None:
    target = Target(bound=bound, value=0.8)
    assert [target.met_by(ratio) for ratio in (0.7, 0.8, 0.9)] == met


def test_a_spread_has_the_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert list(spread.model_dump().values()) == [3.0, 1.0, 2.0, 4.0, 5.0, 5]
