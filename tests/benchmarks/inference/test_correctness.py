"""The correctness checks pass, and fail for wrong logits."""

import pytest
import torch

from benchmarks.inference import correctness
from benchmarks.inference.correctness import WrongLogitsError, checks, require
from benchmarks.measurement.result import Check
from benchmarks.measurement.sizes import SMALL
from benchmarks.measurement.workload import Plan

PLAN = Plan(SMALL, torch.device("cpu"), compiler="eager")
UNCOMPILED = Plan(SMALL, torch.device("cpu"))


def test_all_implementations_agree() -> None:
    results = checks(PLAN)
    require(results)
    assert all(check.passed for check in results)
    assert {"bfloat16, compiled", "float32, vmap ensemble"} <= {check.name for check in results}


def test_a_wrong_implementation_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = correctness.naive_logits
    monkeypatch.setattr(correctness, "naive_logits", lambda *inputs: original(*inputs).roll(1, -1))
    message = r"^float32, naive loop: expected .* at most 0.001, got"
    with pytest.raises(WrongLogitsError, match=message):
        require(checks(UNCOMPILED))


def test_nan_logits_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = correctness.naive_logits
    monkeypatch.setattr(correctness, "naive_logits", lambda *inputs: original(*inputs) * torch.nan)
    with pytest.raises(WrongLogitsError, match="naive loop"):
        require(checks(UNCOMPILED))


def test_a_check_at_its_bound_passes() -> None:
    assert Check(name="float32", difference=0.5, allowed=0.5).passed
