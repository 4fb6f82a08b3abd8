"""The choice of a model's precision: bfloat16 where the device has it and a gate lets it pass.

The gate predicts `drawn_pictures` in float32 and in bfloat16 with the same draws. A probability may
change by at most MAX_CHANGE, and no label, flag or disposition may change.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from eulerlora.checkpoint import Checkpoint
from eulerlora.config import CheckpointConfig
from eulerlora.drawn_pictures import drawn_pictures
from eulerlora.errors import NonFiniteError
from eulerlora.inference import predict_images
from eulerlora.prediction import Prediction, prediction_of
from eulerlora.preprocess import network_input
from eulerlora.runtime import Runtime
from eulerlora.settings import (
    AUTO,
    DEFAULT_SAMPLES,
    PRECISIONS,
    Draw,
    Precision,
    PrecisionChoice,
    RuntimeSettings,
)

MAX_CHANGE = 0.01
SEED = 20260101
REQUESTED = "set by the user"
SLOW_KERNELS = ("DEFAULT", "NO AVX", "AVX2")
"""Kernels of torch without bfloat16, which ATEN_CPU_CAPABILITY can select on any CPU."""

Dispositions = Callable[[Prediction, Sequence[str]], Sequence[str]]
"""(prediction, class names) -> what a triage policy decides about each image."""


@dataclass(frozen=True)
class PrecisionDecision:
    """A precision, and why it was chosen, in one line."""

    precision: Precision
    reason: str


def decide_precision(
    choice: PrecisionChoice,
    checkpoint: Checkpoint,
    device: torch.device,
    dispositions: Dispositions | None = None,
) -> PrecisionDecision:
    """Returns the precision in which to run a checkpoint on a device.

    checkpoint: in float32; it is not changed. dispositions: of a triage policy; None without one.
    """
    if choice != AUTO:
        missing = missing_bfloat16(device) if choice == "bfloat16" else None
        slow = "" if missing is None else f", but slow: {missing}"
        return PrecisionDecision(choice, REQUESTED + slow)
    fault = missing_bfloat16(device) or gate_fault(checkpoint, device, dispositions)
    if fault is not None:
        return PrecisionDecision("float32", fault)
    return PrecisionDecision(
        "bfloat16", f"no drawn picture changes a probability by more than {MAX_CHANGE}"
    )


def missing_bfloat16(device: torch.device) -> str | None:
    """Returns why bfloat16 is no faster than float32 on a device; None if it is."""
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return None if has_bfloat16 else f"the device {device} has no bfloat16"
    if device.type != "cpu":
        return f"bfloat16 has not been measured on the device {device}"
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")):
        return "the CPU has neither avx512_bf16 nor amx_bf16"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"torch uses its kernels for {kernels}" if kernels in SLOW_KERNELS else None


def fastest_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Returns the precision of a choice for work that needs no gate, such as training steps.

    `auto` is bfloat16 where the device has it, and float32 elsewhere.
    """
    if choice != AUTO:
        return choice
    return "bfloat16" if missing_bfloat16(device) is None else "float32"


def gate_fault(
    checkpoint: Checkpoint, device: torch.device, dispositions: Dispositions | None = None
) -> str | None:
    """Returns what bfloat16 changes in the answers for the drawn pictures; None if it is little.

    Arguments as in `decide_precision`. Runs a copy of the network, for det and for stoch.
    """
    network = copy.deepcopy(checkpoint.network)
    answers: list[list[Prediction]] = []
    for precision in PRECISIONS:  # float32 first: bfloat16 changes the copy
        runtime = Runtime(network, device, RuntimeSettings(precision=precision))
        fitted = replace(checkpoint, config=checkpoint.config.in_precision(precision))
        try:
            answers.append([_answer(runtime, fitted, draw) for draw in _draws(checkpoint)])
        except NonFiniteError:
            return f"the output in {precision} is not finite"
    for draw, exact, rounded in zip(_draws(checkpoint), *answers, strict=True):
        change = change_of(exact, rounded)
        if change is None and dispositions is not None:
            names = class_names(checkpoint.config)
            change = _changed(
                "disposition", dispositions(exact, names), dispositions(rounded, names)
            )
        if change is not None:
            return f"bfloat16 in mode {draw.mode}: {change}"
    return None


def change_of(exact: Prediction, rounded: Prediction) -> str | None:
    """Returns the first change of a probability, label or flag that the gate refuses, or None."""
    change = (exact.probabilities - rounded.probabilities).abs().max().item()
    if change > MAX_CHANGE:
        return f"a probability of a drawn picture changes by {change:.3f}, over {MAX_CHANGE}"
    changes = [_changed("label", exact.labels, rounded.labels)]
    for name, score in exact.ood_scores.items():
        flags, others = score.flagged, rounded.ood_scores[name].flagged
        if flags is not None and others is not None:
            changes.append(_changed(f"{name} flag", flags.tolist(), others.tolist()))
    return next((found for found in changes if found is not None), None)


def calibration_mismatch(config: CheckpointConfig, precision: Precision) -> str | None:
    """Returns a warning if OOD thresholds were fitted in another precision; None otherwise."""
    thresholds = config.in_precision(precision).thresholds
    others = {entry.precision for entry in thresholds} - {precision}
    if not others:
        return None
    return (
        f"the OOD thresholds were fitted in {' and '.join(sorted(others))} and apply in "
        f"{precision}; `eulerlora calibrate` fits them again"
    )


def class_names(config: CheckpointConfig) -> list[str]:
    """Returns the names of a checkpoint's classes, in order."""
    return [label.name for label in config.classes]


def _draws(checkpoint: Checkpoint) -> tuple[Draw, Draw]:
    sampler = checkpoint.config.sampler
    stoch = Draw(mode="stoch", samples=DEFAULT_SAMPLES, seed=SEED, sampler=sampler)
    return Draw(), stoch


def _answer(runtime: Runtime, checkpoint: Checkpoint, draw: Draw) -> Prediction:
    config = checkpoint.config
    pictures = [network_input(drawn, config.preprocessing) for drawn in drawn_pictures()]
    images = torch.stack(pictures).to(runtime.device)
    outputs = predict_images(runtime, images, [draw] * len(images), config.temperature)
    return prediction_of(
        outputs,
        (config.adapters.settings.adapters, draw.samples),
        class_names(config),
        checkpoint.feature_distance,
        config.threshold(draw.mode, draw.samples, draw.sampler),
        draw.mode,
        adaptive=False,
    )


def _changed(name: str, values: Sequence[object], others: Sequence[object]) -> str | None:
    changed = sum(one != other for one, other in zip(values, others, strict=True))
    if not changed:
        return None
    return f"the {name} of {changed} of {len(values)} drawn pictures changes"
