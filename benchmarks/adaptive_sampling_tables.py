"""Tables and a chart of fixed numbers of samples and `auto`."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from eulerlora.sampling.adaptive import ROUNDS, samples_until_converged
from eulerlora.scores.uncertainty import summarise
from eulerlora_client.contract.sampling import Sampler
from training.calibration.thresholds import TARGET_TPR, threshold_at_tpr
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import classification_metrics, ood_metrics
from training.reporting.charts import COLOURS

COUNTS = (1, *ROUNDS)
REFERENCE: Sampler = "balanced"  # the sampler with the lower variance


@dataclass(frozen=True)
class SampledProbabilities:
    """Probabilities (repeats, images, adapters, MAX_SAMPLES, classes) with one sampler.

    inside: of in-distribution images. outside: of out-of-distribution images, or None.
    """

    inside: Tensor
    outside: Tensor | None


@dataclass(frozen=True)
class Decisions:
    """Label, entropy in nats and OOD flag, (repeats, images)."""

    label: Tensor
    entropy: Tensor
    flagged: Tensor

    @classmethod
    def of(cls, means: Tensor) -> "Decisions":
        """means: (repeats, images, classes). The OOD threshold has a TPR of 95% on these images."""
        flat = summarise(means.flatten(0, -2).unsqueeze(1))
        threshold = threshold_at_tpr(flat.msp, TARGET_TPR)
        shape = means.shape[:-1]
        return cls(
            label=means.argmax(dim=-1),
            entropy=flat.entropy.view(shape),
            flagged=(flat.msp < threshold).view(shape),
        )


def metrics_table(sampled: SampledProbabilities, labels: Tensor) -> str:
    """Returns a Markdown table of metrics by number of samples, averaged over the repeats."""
    lines = ["| S | deviation | accuracy | NLL | ECE | OOD AUROC |", "|---:" * 6 + "|"]
    for count in COUNTS:
        means = sampled.inside[..., :count, :].mean(dim=(2, 3))
        outside = (
            None if sampled.outside is None else sampled.outside[..., :count, :].mean(dim=(2, 3))
        )
        lines.append(_metrics_line(str(count), means, outside, labels))
    means, outside = adaptive_means(sampled.inside), None
    if sampled.outside is not None:
        threshold = convergence_threshold(sampled.inside)
        outside = adaptive_means(sampled.outside, threshold)
    lines.append(_metrics_line("auto", means, outside, labels))
    return "\n".join(lines)


def _metrics_line(name: str, means: Tensor, outside: Tensor | None, labels: Tensor) -> str:
    """means, outside: (repeats, images, classes)."""
    weights = unit_weights(len(labels))
    by_repeat = [
        classification_metrics(repeat.log().unsqueeze(1), labels.numpy(), weights)
        for repeat in means
    ]
    mean = {key: fmean(metrics[key].item() for metrics in by_repeat) for key in by_repeat[0]}
    auroc = "" if outside is None else f"{_auroc(means, outside):.4f}"
    return (
        f"| {name} | {deviation(means):.5f} | {mean['accuracy']:.4f} | {mean['nll']:.4f} "
        f"| {mean['ece']:.4f} | {auroc} |"
    )


def _auroc(inside: Tensor, outside: Tensor) -> float:
    """Returns the AUROC of the MSP, averaged over the repeats."""
    weights = unit_weights(inside.shape[1] + outside.shape[1])
    pairs = zip(inside.amax(dim=-1).numpy(), outside.amax(dim=-1).numpy(), strict=True)
    return fmean(ood_metrics(msp, other, weights)["auroc"].item() for msp, other in pairs)


def deviation(means: Tensor) -> float:
    """Returns the standard deviation over the repeats, as the root of the mean variance."""
    return float(means.var(dim=0).mean().sqrt())


def convergence_threshold(inside: Tensor) -> float:
    """Returns the threshold of the largest number of samples, as `eulerlora calibrate` does."""
    return threshold_at_tpr(inside.mean(dim=(2, 3)).amax(dim=-1).flatten(), TARGET_TPR)


def adaptive_means(probabilities: Tensor, threshold: float | None = None) -> Tensor:
    """Returns (repeats, images, classes) means over the samples that `auto` runs."""
    means = torch.stack([probabilities[..., :count, :].mean(dim=(2, 3)) for count in ROUNDS])
    rounds = torch.searchsorted(torch.tensor(ROUNDS), adaptive_samples(probabilities, threshold))
    return means.gather(0, rounds[None, ..., None].expand(1, *means.shape[1:]))[0]


def adaptive_samples(probabilities: Tensor, threshold: float | None = None) -> Tensor:
    """Returns (repeats, images) the number of samples per adapter that `auto` runs."""
    if threshold is None:
        threshold = convergence_threshold(probabilities)
    return samples_until_converged(probabilities, threshold)


def reference_means(measured: Mapping[Sampler, SampledProbabilities]) -> Tensor:
    """Returns (repeats, images, classes): means over the balanced samples of the other repeats."""
    repeats = measured[REFERENCE].inside.mean(dim=(2, 3))
    others: Tensor = (repeats.sum(dim=0) - repeats) / (len(repeats) - 1)
    return others


def agreement_table(measured: Mapping[Sampler, SampledProbabilities]) -> str:
    """Returns a Markdown table of the agreement with 64 other balanced samples.

    These are the samples of the other repeats, never those of the compared repeat.
    """
    reference = Decisions.of(reference_means(measured))
    lines = [
        "| sampler | S | mean S | label | OOD flag | both | entropy, RMS difference | "
        + " | ".join(f"S = {count}" for count in ROUNDS)
        + " |",
        "|---|" + "---:|" * (6 + len(ROUNDS)),
    ]
    for sampler, sampled in measured.items():
        for count in ROUNDS:
            means = sampled.inside[..., :count, :].mean(dim=(2, 3))
            lines.append(
                f"| {sampler} | {count} | {count} {_agreement(means, reference)}"
                + " |" * (1 + len(ROUNDS))
            )
        counts = adaptive_samples(sampled.inside)
        shares = [f"{(counts == count).double().mean():.1%}" for count in ROUNDS]
        lines.append(
            f"| {sampler} | auto | {counts.double().mean():.2f} "
            f"{_agreement(adaptive_means(sampled.inside), reference)} | {' | '.join(shares)} |"
        )
    return "\n".join(lines)


def _agreement(means: Tensor, reference: Decisions) -> str:
    decisions = Decisions.of(means)
    label = decisions.label == reference.label
    flag = decisions.flagged == reference.flagged
    shares = " | ".join(f"{equal.double().mean():.2%}" for equal in (label, flag, label & flag))
    return f"| {shares} | {(decisions.entropy - reference.entropy).square().mean().sqrt():.4f}"


def chart(measured: Mapping[Sampler, SampledProbabilities]) -> Figure:
    """Returns a chart of the deviation by number of samples, and of the samples of `auto`."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    width = 0.4
    for index, (sampler, sampled) in enumerate(measured.items()):
        colour, counts = COLOURS[index], adaptive_samples(sampled.inside)
        spread = [deviation(sampled.inside[..., :count, :].mean(dim=(2, 3))) for count in COUNTS]
        left.plot(COUNTS, spread, "o-", color=colour, label=sampler)
        adaptive = deviation(adaptive_means(sampled.inside))
        left.plot(
            float(counts.double().mean()),
            adaptive,
            "*",
            color=colour,
            markersize=14,
            label=f"{sampler}, auto",
        )
        positions = [position + width * (index - 0.5) for position in range(len(ROUNDS))]
        shares = [float((counts == count).double().mean()) for count in ROUNDS]
        right.bar(positions, shares, width, color=colour, label=sampler)
    left.set(
        xscale="log", yscale="log", xlabel="samples per adapter",
        ylabel="standard deviation of a mean probability",
    )  # fmt: skip
    left.set_xticks(COUNTS, [str(count) for count in COUNTS])
    left.minorticks_off()
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    right.set(xlabel="samples per adapter with auto", ylabel="share of the images")
    right.set_xticks(range(len(ROUNDS)), [str(count) for count in ROUNDS])
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
