"""Where bfloat16 is used, and what a checkpoint's record of it refuses."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.checkpoint.config import PrecisionChange
from eulerlora.checkpoint.files import Checkpoint, load_checkpoint
from eulerlora.precision import (
    decide_precision,
    faster_precision,
    missing_bfloat16,
    training_precision,
)
from tests.conftest import DET, STOCH

CPU = torch.device("cpu")
NATIVE = {"avx512_bf16": True, "amx_bf16": False}


@pytest.fixture(autouse=True)
def forget_measurements() -> Iterator[None]:
    yield
    faster_precision.cache_clear()


@pytest.fixture
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return load_checkpoint(checkpoint_folder)


def set_cpu(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool],
    kernels: str = "AVX512",
    times_ms: tuple[float, float] = (2.0, 1.0),
) -> None:
    """Sets what the CPU offers, and the time of a block in float32 and in bfloat16."""
    faster_precision.cache_clear()
    monkeypatch.setattr("eulerlora.precision._block_times_ms", lambda *_: times_ms)
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
def test_a_chosen_precision_needs_no_record(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    precision: str,
    capabilities: dict[str, bool],
    slow: str,
) -> None:
    set_cpu(monkeypatch, capabilities)
    decision = decide_precision(precision, checkpoint.config, CPU)
    assert (decision.precision, decision.reason) == (precision, "set by the user" + slow)


def recorded(checkpoint: Checkpoint, **counts: int) -> Checkpoint:
    """The checkpoint with a record of 1,000 images, of which bfloat16 changes some."""
    same = {"probabilities": 0, "labels": 0, "flags": 0}
    changes = tuple(
        PrecisionChange(options=options, images=1000, data="drawn", **changed)
        for options, changed in ((DET, same), (STOCH, same | counts))
    )
    return replace(checkpoint, config=checkpoint.config.model_copy(update={"bfloat16": changes}))


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize(
    ("counts", "precision"),
    [
        ({}, "bfloat16"),
        ({"probabilities": 20, "labels": 10, "flags": 10}, "bfloat16"),
        ({"probabilities": 21}, "float32"),
        ({"labels": 11}, "float32"),
        ({"flags": 11}, "float32"),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_has_it_and_it_changes_few_answers(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    name: str,
    counts: dict[str, int],
    precision: str,
) -> None:
    set_cpu(monkeypatch, {name: True})
    assert (
        decide_precision("auto", recorded(checkpoint, **counts).config, CPU).precision == precision
    )


def test_auto_is_float32_for_a_checkpoint_without_a_record(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    set_cpu(monkeypatch, NATIVE)
    assert decide_precision("auto", checkpoint.config, CPU).precision == "float32"


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
    decision = decide_precision("auto", recorded(checkpoint).config, CPU)
    assert decision.precision == "float32"
    assert reason in decision.reason
    assert training_precision("auto", checkpoint.network, CPU) == "float32"
    assert training_precision("bfloat16", checkpoint.network, CPU) == "bfloat16"


@pytest.mark.parametrize(
    ("times_ms", "precision"),
    [((2.0, 1.0), "bfloat16"), ((1.0, 0.95), "float32"), ((1.0, 3.0), "float32")],
)
def test_auto_is_what_is_faster_and_says_the_times(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Checkpoint,
    times_ms: tuple[float, float],
    precision: str,
) -> None:
    set_cpu(monkeypatch, NATIVE, times_ms=times_ms)
    decision = decide_precision("auto", recorded(checkpoint).config, CPU)
    assert decision.precision == precision
    assert f"{times_ms[1]:.2f} ms in bfloat16" in decision.reason
    assert training_precision("auto", checkpoint.network, CPU) == precision
    assert training_precision("float32", checkpoint.network, CPU) == "float32"


@pytest.mark.parametrize("of_training", [False, True])
def test_a_block_is_timed_in_both_precisions_and_leaves_threads_and_random_numbers(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, of_training: bool
) -> None:
    monkeypatch.setattr("eulerlora.precision.missing_bfloat16", lambda _: None)
    faster_precision.cache_clear()
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    decision = faster_precision(checkpoint.config.backbone.settings, CPU, of_training)
    times_ms = re.findall(r"([0-9.]+) ms", decision.reason)
    assert len(times_ms) == 2
    assert all(float(time) > 0 for time in times_ms)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_timed_blocks_run_the_mlp_for_all_tokens_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    sizes: set[tuple[int, ...]] = set()
    block_type = type(checkpoint.network.backbone.encoder.layers[0])
    after_attention = block_type.after_attention

    def recorded_size(block, tokens: Tensor, attended: Tensor) -> Tensor:
        sizes.add(tuple(attended.shape[:2]))
        return after_attention(block, tokens, attended)

    monkeypatch.setattr(block_type, "after_attention", recorded_size)
    settings = checkpoint.config.backbone.settings
    monkeypatch.setattr("eulerlora.precision.missing_bfloat16", lambda _: None)
    faster_precision.cache_clear()
    faster_precision(settings, CPU)
    assert (8, settings.tokens) in sizes


def test_auto_is_float32_on_an_unknown_device() -> None:
    assert "has not been measured on the device meta" in str(missing_bfloat16(torch.device("meta")))


def test_thresholds_of_another_precision_are_reported(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert config.calibration_mismatch("float32") is None
    assert "were fitted in float32 and apply in bfloat16" in str(
        config.calibration_mismatch("bfloat16")
    )
    fitted = [
        entry.model_copy(update={"options": entry.options.in_precision("bfloat16")})
        for entry in config.thresholds
    ]
    assert (
        config.model_copy(update={"thresholds": tuple(fitted)}).calibration_mismatch("bfloat16")
        is None
    )
