"""What more samples buy, and how many `auto` takes, as tables and a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from eulerlora.adaptive_sampling import ROUNDS, samples_until_converged
from eulerlora.settings import Sampler
from eulerlora.uncertainty import summarise
from training.evaluation.calibration import TARGET_TPR, threshold_at_tpr
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import classification_metrics, ood_metrics
from training.reporting.charts import COLOURS

COUNTS = (1, *ROUNDS)
REFERENCE: Sampler = "balanced"  # the one that is nearer to all samples there could be


@dataclass(frozen=True)
class Found:
    """Probabilities (repeats, images, adapters, MAX_SAMPLES, classes) with one sampler.

    outside: the same of images unlike those that the model was trained on, None without any.
    """

    inside: Tensor
    outside: Tensor | None


@dataclass(frozen=True)
class Verdicts:
    """What images are told, (repeats, images): label, entropy in nats, and OOD flag."""

    label: Tensor
    entropy: Tensor
    flagged: Tensor

    @classmethod
    def of(cls, means: Tensor) -> "Verdicts":
        """means: (repeats, images, classes). The threshold is the one that keeps 95% of them."""
        flat = summarise(means.flatten(0, -2).unsqueeze(1))
        threshold = threshold_at_tpr(flat.msp, TARGET_TPR)
        shape = means.shape[:-1]
        return cls(
            label=means.argmax(dim=-1),
            entropy=flat.entropy.view(shape),
            flagged=(flat.msp < threshold).view(shape),
        )


def worth_table(found: Found, labels: Tensor) -> str:
    """What answers are worth by the number of samples, as Markdown; means over the repeats."""
    lines = ["| S | deviation | accuracy | NLL | ECE | OOD AUROC |", "|---:" * 6 + "|"]
    for count in COUNTS:
        means = found.inside[..., :count, :].mean(dim=(2, 3))
        outside = None if found.outside is None else found.outside[..., :count, :].mean(dim=(2, 3))
        lines.append(_worth_line(str(count), means, outside, labels))
    means, outside = settled_means(found.inside), None
    if found.outside is not None:
        threshold = settling_threshold(found.inside)
        outside = settled_means(found.outside, threshold)
    lines.append(_worth_line("auto", means, outside, labels))
    return "\n".join(lines)


def _worth_line(name: str, means: Tensor, outside: Tensor | None, labels: Tensor) -> str:
    """means, outside: (repeats, images, classes)."""
    truth, weights = labels.numpy(), unit_weights(len(labels))
    figures = [classification_metrics(each.log().unsqueeze(1), truth, weights) for each in means]
    mean = {key: fmean(each[key].item() for each in figures) for key in figures[0]}
    auroc = "" if outside is None else f"{_auroc(means, outside):.4f}"
    return (
        f"| {name} | {deviation(means):.5f} | {mean['accuracy']:.4f} | {mean['nll']:.4f} "
        f"| {mean['ece']:.4f} | {auroc} |"
    )


def _auroc(inside: Tensor, outside: Tensor) -> float:
    """Of the MSP; the mean over the repeats."""
    weights = unit_weights(inside.shape[1] + outside.shape[1])
    pairs = zip(inside.amax(dim=-1).numpy(), outside.amax(dim=-1).numpy(), strict=True)
    return fmean(ood_metrics(own, other, weights)["auroc"].item() for own, other in pairs)


def deviation(means: Tensor) -> float:
    """Of a mean probability over the repeats: the root of the variance's mean over all others."""
    return float(means.var(dim=0).mean().sqrt())


def settling_threshold(inside: Tensor) -> float:
    """That of the most samples, as `eulerlora calibrate` would set it on these images."""
    return threshold_at_tpr(inside.mean(dim=(2, 3)).amax(dim=-1).flatten(), TARGET_TPR)


def settled_means(found: Tensor, threshold: float | None = None) -> Tensor:
    """(repeats, images, classes): the mean over the samples that `auto` takes of each image."""
    means = torch.stack([found[..., :count, :].mean(dim=(2, 3)) for count in ROUNDS])
    which = torch.searchsorted(torch.tensor(ROUNDS), samples_taken(found, threshold))
    return means.gather(0, which[None, ..., None].expand(1, *means.shape[1:]))[0]


def samples_taken(found: Tensor, threshold: float | None = None) -> Tensor:
    """(repeats, images)."""
    return samples_until_converged(
        found, settling_threshold(found) if threshold is None else threshold
    )


def agreement_table(measured: Mapping[Sampler, Found]) -> str:
    """How answers compare with those of 64 other balanced samples, as Markdown.

    These are all of the other repeats, so that no answer is compared with its own samples.
    """
    repeats = measured[REFERENCE].inside.mean(dim=(2, 3))
    reference = Verdicts.of((repeats.sum(dim=0) - repeats) / (len(repeats) - 1))
    lines = [
        "| sampler | S | mean S | label | OOD flag | both | entropy, RMS difference | "
        + " | ".join(f"S = {count}" for count in ROUNDS)
        + " |",
        "|---|" + "---:|" * (6 + len(ROUNDS)),
    ]
    for sampler, found in measured.items():
        for count in ROUNDS:
            means = found.inside[..., :count, :].mean(dim=(2, 3))
            lines.append(
                f"| {sampler} | {count} | {count} {_agreement(means, reference)}"
                + " |" * (1 + len(ROUNDS))
            )
        taken = samples_taken(found.inside)
        shares = [f"{(taken == count).double().mean():.1%}" for count in ROUNDS]
        lines.append(
            f"| {sampler} | auto | {taken.double().mean():.2f} "
            f"{_agreement(settled_means(found.inside), reference)} | {' | '.join(shares)} |"
        )
    return "\n".join(lines)


def _agreement(means: Tensor, reference: Verdicts) -> str:
    found = Verdicts.of(means)
    label, flag = found.label == reference.label, found.flagged == reference.flagged
    shares = " | ".join(f"{each.double().mean():.2%}" for each in (label, flag, label & flag))
    return f"| {shares} | {(found.entropy - reference.entropy).square().mean().sqrt():.4f}"


def drawing(measured: Mapping[Sampler, Found]) -> Figure:
    """The deviation by the number of samples, and how many `auto` takes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    width = 0.4
    for index, (sampler, found) in enumerate(measured.items()):
        colour, taken = COLOURS[index], samples_taken(found.inside)
        spread = [deviation(found.inside[..., :each, :].mean(dim=(2, 3))) for each in COUNTS]
        left.plot(COUNTS, spread, "o-", color=colour, label=sampler)
        settled = deviation(settled_means(found.inside))
        left.plot(
            float(taken.double().mean()),
            settled,
            "*",
            color=colour,
            markersize=14,
            label=f"{sampler}, auto",
        )
        places = [place + width * (index - 0.5) for place in range(len(ROUNDS))]
        shares = [float((taken == count).double().mean()) for count in ROUNDS]
        right.bar(places, shares, width, color=colour, label=sampler)
    left.set(
        xscale="log", yscale="log", xlabel="samples per adapter",
        ylabel="standard deviation of a mean probability",
    )  # fmt: skip
    left.set_xticks(COUNTS, [str(each) for each in COUNTS])
    left.minorticks_off()
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    right.set(xlabel="samples per adapter that auto takes", ylabel="share of the images")
    right.set_xticks(range(len(ROUNDS)), [str(each) for each in ROUNDS])
    for each in (left, right):
        each.legend(frameon=False)
        each.spines[["top", "right"]].set_visible(False)
    return figure
