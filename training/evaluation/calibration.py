"""Calibration of OOD thresholds on the MSP, from held-out in-distribution images."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import MAX_SAMPLES, ROUNDS, samples_until_converged
from eulerlora.checkpoint import load_checkpoint, revision_of, write_config
from eulerlora.config import Threshold
from eulerlora.model import EulerLoRA
from eulerlora.settings import AUTO, Auto, Mode, Sampler
from eulerlora.uncertainty import summarise
from training.data.labelled_images import ImageParts, LabelledImage
from training.evaluation.inference import SamplingOptions, predict_all
from training.recipe.schema import SAMPLES

TARGET_TPR = 0.95


def calibrate(
    folder: Path,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = SAMPLES,
    sampler: Sampler | None = None,
) -> tuple[Threshold, ...]:
    """Sets the OOD thresholds of the checkpoint in `folder`: `det`, and `stoch` with `samples`.

    Uses the calibration part, or the test part of a split without one; the thresholds name it.
    Replaces `config.json` atomically and changes no other file. The seeds come from the revision
    without thresholds, so a second calibration gives the same thresholds.
    sampler: new sampler of the checkpoint; None keeps the present one.
    """
    checkpoint = load_checkpoint(folder)
    uncalibrated = checkpoint.config.model_copy(
        update={"sampler": sampler or checkpoint.config.sampler, "thresholds": ()}
    )
    revision = revision_of(uncalibrated)
    model = EulerLoRA(replace(checkpoint, config=uncalibrated, revision=revision), device)
    part = "calibration" if "calibration" in images.parts else "test"
    data = f"{images.name}, {part} part"
    thresholds = compute_thresholds(model, images.parts[part], data, samples)
    write_config(folder, uncalibrated.model_copy(update={"thresholds": thresholds}))
    return thresholds


def compute_thresholds(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    data: str,
    samples: Sequence[int | Auto] = SAMPLES,
) -> tuple[Threshold, ...]:
    """Returns a threshold for each mode and number of samples, with a TPR of at least 95%.

    All numbers of samples share one set of draws: the first s of the largest number, which have
    the distribution of s samples with both samplers.
    """
    largest = max(count if isinstance(count, int) else MAX_SAMPLES for count in samples)
    options = [SamplingOptions("det"), SamplingOptions("stoch", largest)]
    det, stoch = (
        log_probabilities.exp()
        for log_probabilities in predict_all(model, images, options, "calibrate")
    )
    return (
        _threshold("det", 1, _msp(det, 1), data),
        *stochastic_thresholds(stoch, samples, data),
    )


def stochastic_thresholds(
    trajectories: Tensor, samples: Sequence[int | Auto], data: str
) -> list[Threshold]:
    """Returns a threshold for each number of samples, `auto` last.

    trajectories: (n, adapters, samples, classes) probabilities, with the largest of `samples`.
    """
    counts = [count for count in samples if isinstance(count, int)]
    thresholds = {
        count: _threshold("stoch", count, _msp(trajectories, count), data) for count in counts
    }
    if AUTO not in samples:
        return list(thresholds.values())
    # The same as CheckpointConfig.convergence_threshold, by which predictions decide.
    convergence = thresholds[max(counts)].msp if counts else None
    msp = _adaptive_msp(trajectories, convergence)
    return [*thresholds.values(), _threshold("stoch", AUTO, msp, data)]


def threshold_at_tpr(scores: Tensor, tpr: float) -> float:
    """Returns the highest threshold that at least a share `tpr` of the scores reach.

    scores: (n,).
    """
    accepted = math.ceil(tpr * len(scores))
    return float(scores.sort(descending=True).values[accepted - 1])


def _adaptive_msp(trajectories: Tensor, convergence_threshold: float | None) -> Tensor:
    """Returns (n,) the MSP over the samples that `auto` runs for each image."""
    by_round = torch.stack([_msp(trajectories, count) for count in ROUNDS])
    counts = samples_until_converged(trajectories, convergence_threshold)
    rounds = torch.searchsorted(torch.tensor(ROUNDS), counts)
    return by_round.gather(0, rounds.unsqueeze(0))[0]


def _msp(trajectories: Tensor, count: int) -> Tensor:
    """Returns (n,) the MSP over the first `count` samples.

    trajectories: (n, adapters, samples, classes).
    """
    return summarise(trajectories[:, :, :count].flatten(1, 2)).msp


def _threshold(mode: Mode, samples: int | Auto, msp: Tensor, data: str) -> Threshold:
    """msp: (n,)."""
    threshold = threshold_at_tpr(msp, TARGET_TPR)
    return Threshold(
        mode=mode,
        samples=samples,
        msp=threshold,
        kept=float((msp >= threshold).double().mean()),
        images=len(msp),
        data=data,
    )
