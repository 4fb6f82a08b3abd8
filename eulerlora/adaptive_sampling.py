"""The rule of `samples="auto"`: when an image has had enough samples.

Samples are run in rounds until the decision is settled: the label, the OOD flag, and the entropy to
a stated standard error. The rule reads an image's trajectories and nothing else.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.settings import Draw

ROUNDS = (2, 4, 8, 12, 16)
"""Samples per adapter after each round; the mean of balanced samples is best at 2 and at multiples
of 4.
"""

MOST = ROUNDS[-1]

CERTAINTY = 2.0
"""Standard errors by which the first class must lead, and the MSP be away from the threshold."""

ENTROPY_ERROR_NATS = 0.06


def rounds(draw: Draw) -> Iterator[Draw]:
    """The draws of an image's rounds; each runs the samples that come after the last one's.

    draw: in mode `stoch`; how many samples it asks for does not matter.
    """
    for first, samples in itertools.pairwise((0, *ROUNDS)):
        yield draw.model_copy(update={"first": first, "samples": samples})


def joined(answers: Sequence[Tensor], adapters: int) -> Tensor:
    """(adapters, samples, classes): what the rounds of an image gave, together.

    answers: (adapters * samples of the round, classes) each.
    """
    return torch.cat([each.unflatten(0, (adapters, -1)) for each in answers], dim=1)


@dataclass(frozen=True)
class StandardErrors:
    """How far the means over the samples are from those over all samples that could be drawn.

    msp: of the probability of the most probable class. lead: of its distance to the next one.
    entropy: in nats, by the delta method. All of shape (...).
    """

    msp: Tensor
    lead: Tensor
    entropy: Tensor


def standard_errors(trajectories: Tensor) -> StandardErrors:
    """The errors of the mean over all trajectories, float64.

    trajectories: (..., adapters, samples, classes) probabilities, at least two samples. The
    adapters are given, their samples drawn: Var = sum over a of s_a^2 / (adapters^2 samples). That
    is right for independent samples; balanced ones vary less, so that theirs are at most these.
    """
    exact = trajectories.double()
    mean = exact.mean(dim=(-3, -2))
    first, second = _each_of(exact, mean.topk(2, dim=-1).indices)
    slope = torch.xlogy(exact, mean[..., None, None, :]).sum(dim=-1)  # of the entropy, negative
    return StandardErrors(
        msp=_error_of_mean(first),
        lead=_error_of_mean(first - second),
        entropy=_error_of_mean(slope),
    )


def settled(trajectories: Tensor, threshold: float | None) -> Tensor:
    """Whether more samples are not wanted: (...), bool. Trajectories with NaN want none.

    trajectories: as in `standard_errors`. threshold: the MSP's, below which an image is flagged as
    out of distribution; None where there is none to be told.
    """
    adapters, samples = trajectories.shape[-3:-1]
    mean = trajectories.double().mean(dim=(-3, -2))
    errors = standard_errors(trajectories)
    first, second = mean.topk(2, dim=-1).values.unbind(dim=-1)
    far = student(CERTAINTY, adapters * (samples - 1))
    enough = errors.entropy * far / CERTAINTY <= ENTROPY_ERROR_NATS
    enough &= first - second >= far * errors.lead
    if threshold is not None:
        enough &= (first - threshold).abs() >= far * errors.msp
    return enough | mean.isnan().any(dim=-1)


def student(deviate: float, freedom: int) -> float:
    """The quantile of Student's t where the normal one is `deviate`: an error that was estimated
    from few samples is itself unsure. freedom: degrees of it, at least 1.

    Abramowitz and Stegun, 26.7.5, to the second order.
    """
    first = (deviate**3 + deviate) / 4
    second = (5 * deviate**5 + 16 * deviate**3 + 3 * deviate) / 96
    return deviate + first / freedom + second / freedom**2


def samples_until_settled(trajectories: Tensor, threshold: float | None) -> Tensor:
    """How many samples per adapter each image takes: (...), int64, one of `ROUNDS`.

    trajectories: (..., adapters, MOST or more, classes), of which the first are those of a
    question for fewer.
    """
    taken = torch.full(trajectories.shape[:-3], MOST)
    for samples in reversed(ROUNDS[:-1]):
        taken[settled(trajectories[..., :samples, :], threshold)] = samples
    return taken


def _each_of(trajectories: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
    """(..., adapters, samples) for each of the classes (..., n)."""
    chosen = classes[..., None, None, :].expand(*trajectories.shape[:-1], -1)
    return trajectories.gather(-1, chosen).unbind(dim=-1)


def _error_of_mean(values: Tensor) -> Tensor:
    """values: (..., adapters, samples). Returns (...)."""
    adapters, samples = values.shape[-2:]
    spread = (values - values.mean(dim=-1, keepdim=True)).square().sum(dim=-1) / (samples - 1)
    return (spread.mean(dim=-1) / (adapters * samples)).sqrt()
