import pytest
import torch

from benchmarks.inference.comparisons import correctness
from benchmarks.inference.correctness import Check, WrongLogitsError, checks, require
from benchmarks.measurement.sizes import SMALL
from benchmarks.measurement.workload import Plan

PLAN = Plan(SMALL, torch.device("cpu"), compiler="eager")
UNCOMPILED = Plan(SMALL, torch.device("cpu"))


def test_all_ways_to_the_logits_agree() -> None:
    found = checks(PLAN)
    require(found)
    assert all(each.passed for each in found)
    assert {"bfloat16, compiled", "float32, vmap ensemble"} <= {each.name for each in found}


def test_a_wrong_way_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = correctness.naive_logits
    monkeypatch.setattr(correctness, "naive_logits", lambda *given: right(*given).roll(1, dims=-1))
    with pytest.raises(WrongLogitsError, match=r"^float32, naive loop: .* allowed 0.001$"):
        require(checks(UNCOMPILED))


def test_logits_that_are_not_a_number_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = correctness.naive_logits
    monkeypatch.setattr(correctness, "naive_logits", lambda *given: right(*given) * torch.nan)
    with pytest.raises(WrongLogitsError, match="naive loop"):
        require(checks(UNCOMPILED))


def test_a_check_at_its_bound_passes() -> None:
    assert Check(name="float32", difference=0.5, allowed=0.5).passed
