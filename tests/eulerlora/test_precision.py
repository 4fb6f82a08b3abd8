"""Where bfloat16 is tried, and what its gate refuses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import Checkpoint, load_checkpoint
from eulerlora.model import (
    MAX_CHANGE,
    REQUESTED,
    EulerLoRA,
    change_of,
    decide_precision,
    fastest_precision,
    gate_fault,
    missing_bfloat16,
)
from eulerlora_contract.sampling import Precision

CPU = torch.device("cpu")
NATIVE = {"avx512_bf16": True, "amx_bf16": False}


@pytest.fixture
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return load_checkpoint(checkpoint_folder)


@pytest.fixture(scope="module")
def answer(checkpoint_folder: Path) -> Predictions:
    return EulerLoRA.load(checkpoint_folder, "cpu").predict(torch.rand(3, 3, 32, 32))


def set_cpu(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], kernels: str = "AVX512"
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kernels)


@pytest.mark.parametrize(
    ("precision", "capabilities", "slow"),
    [
        ("float32", {}, ""),
        ("bfloat16", NATIVE, ""),
        ("bfloat16", {}, ", but slow: the CPU has neither avx512_bf16 nor amx_bf16"),
    ],
)
def test_a_chosen_precision_has_no_gate(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    precision: Precision,
    capabilities: dict[str, bool],
    slow: str,
) -> None:
    set_cpu(monkeypatch, capabilities)
    monkeypatch.setattr("eulerlora.model.MAX_CHANGE", -1.0)
    decision = decide_precision(precision, checkpoint, CPU)
    assert (decision.precision, decision.reason) == (precision, REQUESTED + slow)


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
def test_auto_is_bfloat16_on_a_cpu_that_has_it(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, name: str
) -> None:
    set_cpu(monkeypatch, {name: True})
    before = {key: values.clone() for key, values in checkpoint.network.state_dict().items()}
    monkeypatch.setattr("eulerlora.model.MAX_CHANGE", 1.0)
    without_thresholds = checkpoint.config.model_copy(update={"thresholds": ()})
    decision = decide_precision("auto", replace(checkpoint, config=without_thresholds), CPU)
    assert decision.precision == "bfloat16", decision
    for key, values in checkpoint.network.state_dict().items():
        assert torch.equal(values, before[key])
        assert values.dtype == before[key].dtype


@pytest.mark.parametrize(
    ("capabilities", "kernels", "reason"),
    [
        ({}, "AVX512", "neither avx512_bf16 nor amx_bf16"),
        ({"avx512_bf16": False, "avx512_f": True}, "AVX512", "neither avx512_bf16"),
        (NATIVE, "AVX2", "kernels for AVX2"),
    ],
)
def test_auto_is_float32_on_a_cpu_without_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    capabilities: dict[str, bool],
    kernels: str,
    reason: str,
) -> None:
    set_cpu(monkeypatch, capabilities, kernels)
    monkeypatch.setattr("eulerlora.model.MAX_CHANGE", 1.0)
    decision = decide_precision("auto", checkpoint, CPU)
    assert decision.precision == "float32"
    assert reason in decision.reason
    assert fastest_precision("auto", CPU) == "float32"
    assert fastest_precision("bfloat16", CPU) == "bfloat16"


def test_work_without_a_gate_is_in_bfloat16_where_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_cpu(monkeypatch, NATIVE)
    assert fastest_precision("auto", CPU) == "bfloat16"
    assert fastest_precision("float32", CPU) == "float32"


def test_auto_is_float32_on_an_unknown_device() -> None:
    assert "has not been measured on the device meta" in str(missing_bfloat16(torch.device("meta")))


def test_a_changed_probability_closes_the_gate(answer: Predictions) -> None:
    assert change_of(answer, answer) is None
    moved = answer.probabilities.clone()
    moved[1, 0] += 0.9 * MAX_CHANGE
    assert change_of(answer, replace(answer, probabilities=moved)) is None
    moved[1, 0] += 0.2 * MAX_CHANGE
    assert "changes by 0.011, over 0.01" in str(
        change_of(answer, replace(answer, probabilities=moved))
    )


def test_a_changed_label_or_flag_closes_the_gate(answer: Predictions) -> None:
    other = replace(answer, labels=("other", *answer.labels[1:]))
    assert change_of(answer, other) == "the label of 1 of 3 drawn pictures changes"
    msp = answer.ood_scores["msp"]
    assert msp.flagged is not None
    scores = {**answer.ood_scores, "msp": replace(msp, flagged=~msp.flagged)}
    flagged = replace(answer, ood_scores=scores)
    assert change_of(answer, flagged) == "the msp flag of 3 of 3 drawn pictures changes"


def test_a_changed_disposition_closes_the_gate(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    monkeypatch.setattr("eulerlora.model.MAX_CHANGE", 1.0)
    monkeypatch.setattr("eulerlora.model.change_of", lambda *_: None)
    seen: list[Predictions] = []

    def dispositions(prediction: Predictions, classes: Sequence[str]) -> list[str]:
        assert list(classes) == ["bkl", "mel", "nv"]
        seen.append(prediction)
        return ["urgent" if len(seen) == 2 else "routine"] * len(prediction.labels)

    fault = gate_fault(checkpoint, CPU, dispositions)
    assert fault == "bfloat16 in mode det: the disposition of 6 of 6 drawn pictures changes"
    exact, rounded = seen
    assert not torch.equal(exact.probabilities, rounded.probabilities)


def test_rounding_that_changes_too_much_closes_the_gate(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    monkeypatch.setattr("eulerlora.model.MAX_CHANGE", 1e-9)
    assert "bfloat16 in mode det: a probability" in str(gate_fault(checkpoint, CPU))


def test_a_network_without_finite_output_closes_the_gate(checkpoint: Checkpoint) -> None:
    with torch.no_grad():
        checkpoint.network.heads.bias.fill_(torch.inf)
    assert gate_fault(checkpoint, CPU) == "the output in float32 is not finite"


def test_thresholds_of_another_precision_are_reported(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert config.calibration_mismatch("float32") is None
    assert "were fitted in float32 and apply in bfloat16" in str(
        config.calibration_mismatch("bfloat16")
    )
    fitted = [entry.model_copy(update={"precision": "bfloat16"}) for entry in config.thresholds]
    assert (
        config.model_copy(update={"thresholds": tuple(fitted)}).calibration_mismatch("bfloat16")
        is None
    )
