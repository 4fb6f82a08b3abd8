"""How the mean over S samples varies, independent or balanced: `python -m benchmarks.sampling`.

Prints the coefficients' variances and what drawing takes. With `--data DIR` also the Monte Carlo
standard deviation of a checkpoint's mean probabilities, on images of its test part.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from torch import Generator, Tensor
from tqdm import tqdm

from eulerlora.checkpoint import DEFAULT_CHECKPOINT
from eulerlora.coefficients import (
    draw_balanced_trajectories,
    draw_trajectories,
    trajectory_coefficients,
)
from eulerlora.inference import predict_rows
from eulerlora.model import EulerLoRA
from eulerlora.preprocess import resize
from eulerlora.settings import SAMPLERS, AdapterSettings, Draw, Sampler
from training.data.datasets import checkpoint_dataset
from training.data.labelled_images import evenly_spaced
from training.data.sources import read_image
from training.evaluation.report_schema import TEST

PAPER = AdapterSettings()
BLOCKS = 12  # of ViT-B/32
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
DRAWS = 4_000
LAWS = {"independent": draw_trajectories, "balanced": draw_balanced_trajectories}
IMAGES_AT_ONCE = 8


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="The checkpoint's data directory.")
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--images", type=click.IntRange(1), default=50, show_default=True)
@click.option("--repeats", type=click.IntRange(2), default=16, show_default=True)
@click.option("--samples", type=click.IntRange(1, 64), default=4, help="The most; a power of two.")
@click.option("--threads", type=click.IntRange(1), help="Instead of torch's own choice.")
def main(
    data: Path | None,
    checkpoint: Path,
    images: int,
    repeats: int,
    samples: int,
    threads: int | None,
) -> None:
    """Measure both samplers."""
    if threads is not None:
        torch.set_num_threads(threads)
    click.echo(coefficient_table(DRAWS, COUNTS))
    click.echo(drawing_table())
    if data is not None:
        model = EulerLoRA.load(checkpoint, "auto")
        pixels = test_inputs(model, data, images)
        click.echo(model_table(model, pixels, samples, repeats))


def coefficient_table(draws: int, counts: Sequence[int]) -> str:
    """Variances of a coefficient's mean over S samples, and their ratios, as Markdown."""
    lines = ["| S | independent | balanced | ratio at Q, K, V | ratio at O |", "|---:" * 5 + "|"]
    for samples in counts:
        first, second = (mean_variance(each, samples, draws) for each in SAMPLERS)
        inputs, output = (first / second).tolist()
        lines.append(
            f"| {samples} | {first[0]:.5f} | {second[0]:.5f} | {inputs:.2f} | {output:.2f} |"
        )
    return "\n".join(lines) + "\n"


def mean_variance(sampler: Sampler, samples: int, draws: int) -> Tensor:
    """(2,): the variance of a coefficient's mean over samples, at Q, K and V, and at O."""
    one = PAPER.model_copy(update={"adapters": 1})
    drawn = LAWS[sampler](samples, draws, one, Generator().manual_seed(samples)).double()
    squares = ((drawn.mean(dim=0) - 1) ** 2).mean(dim=(0, 2))  # (4,); every mean is 1
    return torch.stack([squares[:3].mean(), squares[3]])


def drawing_table() -> str:
    """Milliseconds that the coefficients of images take with each sampler, as Markdown."""
    lines = ["| images | S | independent, ms | balanced, ms |", "|---:" * 4 + "|"]
    for images, samples in ((1, 1), (1, 4), (1, 16), (64, 4), (64, 16)):
        first, second = (drawing_ms(each, images, samples) for each in SAMPLERS)
        lines.append(f"| {images} | {samples} | {first:.2f} | {second:.2f} |")
    return "\n".join(lines) + "\n"


def drawing_ms(sampler: Sampler, images: int, samples: int, repeats: int = 10) -> float:
    """The least time that drawing for so many requests took."""
    asked = [
        Draw(mode="stoch", samples=samples, seed=seed, sampler=sampler) for seed in range(images)
    ]
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        for draw in asked:
            trajectory_coefficients(draw, BLOCKS, PAPER)
        taken.append(time.perf_counter() - started)
    return 1000 * min(taken)


def test_inputs(model: EulerLoRA, data: Path, count: int) -> Tensor:
    """(count, 3, size, size): evenly spaced images of the model's test part."""
    found = evenly_spaced(checkpoint_dataset(model.config, data).parts[TEST], count)
    size = model.config.preprocessing.size
    return torch.stack([resize(read_image(each.name, each.source), size) for each in found])


def model_table(model: EulerLoRA, pixels: Tensor, samples: int, repeats: int) -> str:
    """Standard deviations of the mean probability by S, and their ratio, as Markdown."""
    first, second = (deviations(model, pixels, each, samples, repeats) for each in SAMPLERS)
    lines = [
        f"{len(pixels)} images, {repeats} repeats of {samples} samples\n",
        "| S | independent | balanced | ratio | as good as so many independent |",
        "|---:" * 5 + "|",
    ]
    for count, independent in first.items():
        ratio = second[count] / independent
        worth = first[1] ** 2 / second[count] ** 2
        lines.append(
            f"| {count} | {independent:.5f} | {second[count]:.5f} | {ratio:.3f} | {worth:.1f} |"
        )
    return "\n".join(lines) + "\n"


def deviations(
    model: EulerLoRA, pixels: Tensor, sampler: Sampler, samples: int, repeats: int
) -> dict[int, float]:
    """The standard deviation of the mean probability over the draws, by S = 1, 2, 4, ... samples.

    The root of the variance's mean over images and classes. A balanced draw of fewer samples is
    the beginning of one of more, and each of its groups has the same law; independent ones are cut
    anywhere.
    """
    seeds = torch.arange(repeats * len(pixels)).view(repeats, -1).tolist()
    asked = Draw(mode="stoch", samples=samples, sampler=sampler)
    rounds = [
        answers(model, pixels, [asked.model_copy(update={"seed": seed}) for seed in own])
        for own in tqdm(seeds, sampler, disable=None)
    ]
    found = torch.stack(rounds)  # (repeats, images, adapters, samples, classes)
    counts = [2**power for power in range(samples.bit_length()) if samples % 2**power == 0]
    return {count: _deviation(found, count) for count in counts}


def _deviation(found: Tensor, count: int) -> float:
    means: Tensor = found.unflatten(3, (-1, count)).mean(dim=4)
    adapters = means.shape[2]  # they are independent: their variances add up
    return float((means.var(dim=0).mean() / adapters).sqrt())


def answers(model: EulerLoRA, pixels: Tensor, draws: Sequence[Draw]) -> Tensor:
    """(images, adapters, samples, classes) probabilities."""
    found = [
        each
        for start in range(0, len(pixels), IMAGES_AT_ONCE)
        for each in predict_rows(
            model.runtime,
            pixels[start : start + IMAGES_AT_ONCE].to(model.device),
            draws[start : start + IMAGES_AT_ONCE],
        )
    ]
    adapters = model.network.settings.adapters
    together: Tensor = torch.stack(found).exp().unflatten(1, (adapters, -1))
    return together


if __name__ == "__main__":
    main()
