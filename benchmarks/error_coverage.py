"""The share of answers within the stated errors of `samples=auto`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.adaptive_sampling_tables import (
    SampledProbabilities,
    adaptive_samples,
    reference_means,
)
from eulerlora.sampling.adaptive import INTERVAL_ERRORS, ROUNDS, standard_errors
from eulerlora.settings import Sampler


def error_coverage_table(measured: Mapping[Sampler, SampledProbabilities]) -> str:
    """Returns a Markdown table of the coverage of MSP and entropy plus and minus two errors.

    A value is covered if the interval contains that of 64 other balanced samples, those of the
    other repeats. For a fixed number of samples, and for the answers of `auto` by the number at
    which they stopped.
    """
    reference = reference_means(measured)
    lines = [
        "| sampler | S | fixed S, MSP | fixed S, entropy | answers of auto | auto, MSP "
        "| auto, entropy |",
        "|---|" + "---:|" * 6,
    ]
    for sampler, sampled in measured.items():
        counts = adaptive_samples(sampled.inside)
        covered = torch.stack([_covered(sampled.inside, count, reference) for count in ROUNDS])
        stopped = torch.stack([counts == count for count in ROUNDS])  # (rounds, repeats, images)
        for count, fixed, ended in zip(ROUNDS, covered, stopped, strict=True):
            lines.append(
                f"| {sampler} | {count} {_shares(fixed.flatten(0, 1))} | {int(ended.sum())} "
                f"{_shares(fixed[ended])} |"
            )
        lines.append(f"| {sampler} | all |  |  | {counts.numel()} {_shares(covered[stopped])} |")
    return "\n".join(lines)


def _covered(inside: Tensor, count: int, reference: Tensor) -> Tensor:
    """Returns (repeats, images, 2), bool: whether MSP and entropy of `count` samples are covered.

    inside: (repeats, images, adapters, samples, classes). reference: (repeats, images, classes).
    The MSP is compared with the reference probability of the same class.
    """
    trajectories = inside[..., :count, :]
    mean = trajectories.mean(dim=(2, 3))
    errors = standard_errors(trajectories)
    msp, label = mean.max(dim=-1)
    distances = torch.stack(
        [
            msp - reference.gather(-1, label.unsqueeze(-1)).squeeze(-1),
            torch.special.entr(mean).sum(dim=-1) - torch.special.entr(reference).sum(dim=-1),
        ],
        dim=-1,
    ).abs()
    return distances <= INTERVAL_ERRORS * torch.stack([errors.msp, errors.entropy], dim=-1)


def _shares(covered: Tensor) -> str:
    """covered: (n, 2), for MSP and entropy."""
    if not len(covered):
        return "|  | "
    return "| " + " | ".join(f"{share:.1%}" for share in covered.double().mean(dim=0).tolist())
