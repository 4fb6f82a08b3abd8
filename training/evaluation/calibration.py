"""OOD thresholds on the maximum softmax probability, from held-out in-distribution images."""

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
from training.data.datasets import ImageParts, LabelledImage
from training.evaluation.inference import Question, predict_all
from training.recipe.schema import SAMPLES

KEPT = 0.95


def calibrate(
    folder: Path,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = SAMPLES,
    sampler: Sampler | None = None,
) -> tuple[Threshold, ...]:
    """Sets the thresholds of the checkpoint in `folder`: `det`, and `stoch` at `samples`.

    The calibration part is used, or, in a split without one, the test part; the thresholds say
    which. Only `config.json` changes, in one step. The draws are those of the checkpoint before it
    had any thresholds: calibrating again gives the same.
    sampler: how the checkpoint draws samples from now on; None leaves it as it is.
    """
    checkpoint = load_checkpoint(folder)
    blank = checkpoint.config.model_copy(
        update={"sampler": sampler or checkpoint.config.sampler, "thresholds": ()}
    )
    model = EulerLoRA(replace(checkpoint, config=blank, revision=revision_of(blank)), device)
    part = "calibration" if "calibration" in images.parts else "test"
    thresholds = find_thresholds(model, images.parts[part], f"{images.name}, {part} part", samples)
    write_config(folder, blank.model_copy(update={"thresholds": thresholds}))
    return thresholds


def find_thresholds(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    data: str,
    samples: Sequence[int | Auto] = SAMPLES,
) -> tuple[Threshold, ...]:
    """One threshold for each mode and sample count, each keeping at least 95% of `images`.

    That of `auto` is the last one. The counts of `stoch` share one set of draws: the first s of the
    most samples, which have the law of s samples with either sampler.
    """
    counts = [each for each in samples if isinstance(each, int)]
    auto = AUTO in samples
    questions: list[Question] = [("det", 1), ("stoch", max([*counts, MAX_SAMPLES * auto]))]
    det, stoch = (each.exp() for each in predict_all(model, images, questions, "calibrate"))
    of_counts = {count: _threshold("stoch", count, _msp(stoch, count), data) for count in counts}
    found = [_threshold("det", 1, _msp(det, 1), data), *of_counts.values()]
    if auto:
        most = of_counts[max(counts)].msp if counts else None
        found.append(_threshold("stoch", AUTO, _settled_msp(stoch, most), data))
    return tuple(found)


def _settled_msp(trajectories: Tensor, threshold: float | None) -> Tensor:
    """(n,), with the samples that `auto` takes; threshold: as `samples_until_converged` has it."""
    by_round = torch.stack([_msp(trajectories, count) for count in ROUNDS])
    taken = samples_until_converged(trajectories, threshold)
    which = torch.searchsorted(torch.tensor(ROUNDS), taken)
    return by_round.gather(0, which.unsqueeze(0))[0]


def _msp(trajectories: Tensor, count: int) -> Tensor:
    """(n,), with the first `count` samples; trajectories: (n, adapters, samples, classes)."""
    return summarise(trajectories[:, :, :count].flatten(1, 2)).msp


def _threshold(mode: Mode, samples: int | Auto, msp: Tensor, data: str) -> Threshold:
    """msp: (n,)."""
    threshold = keeping_threshold(msp, KEPT)
    return Threshold(
        mode=mode,
        samples=samples,
        msp=threshold,
        kept=float((msp >= threshold).double().mean()),
        images=len(msp),
        data=data,
    )


def keeping_threshold(scores: Tensor, share: float) -> float:
    """The highest threshold that at least `share` of the scores reach; scores: (n,)."""
    kept = math.ceil(share * len(scores))
    return float(scores.sort(descending=True).values[kept - 1])
