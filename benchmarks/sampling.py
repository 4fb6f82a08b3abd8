"""Variance of the mean over S samples, independent or balanced: `python -m benchmarks.sampling`.

Prints the variances of the coefficients and the time of drawing. With `--data DIR`, also prints the
Monte Carlo standard deviation of a checkpoint's mean probabilities on images of its test part.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from torch import Generator, Tensor

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.images.preprocess import network_input
from eulerlora.methods.masks import EulerLoRAMethod
from eulerlora.methods.settings import EULERLORA
from eulerlora.model import EulerLoRA
from eulerlora.nn.method import NetworkShape
from eulerlora.nn.runtime import predict_rows
from eulerlora.sampling.masks import draw_balanced_trajectories, draw_trajectories
from eulerlora.settings import SAMPLERS, AdapterSettings, BackboneSettings, Draw, Sampler
from training.data.datasets import checkpoint_dataset
from training.data.images import evenly_spaced, read_image
from training.data.progress import track
from training.evaluation.report_schema import TEST

PAPER = AdapterSettings()
BLOCKS = 12  # of ViT-B/32
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
DRAWS = 4_000
SAMPLER_FUNCTIONS = {"independent": draw_trajectories, "balanced": draw_balanced_trajectories}
BATCH_IMAGES = 8


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="The checkpoint's data directory.")
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--images", type=click.IntRange(1), default=50, show_default=True)
@click.option("--repeats", type=click.IntRange(2), default=16, show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1, 64),
    default=4,
    help="Largest number of samples; a power of two.",
)
@click.option("--threads", type=click.IntRange(1), help="Number of torch threads.")
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
        pixels = images_of_test_part(model, data, images)
        click.echo(model_table(model, pixels, samples, repeats))


def coefficient_table(draws: int, counts: Sequence[int]) -> str:
    """Returns a Markdown table of the variance of a coefficient's mean over S samples."""
    lines = ["| S | independent | balanced | ratio at Q, K, V | ratio at O |", "|---:" * 5 + "|"]
    for samples in counts:
        first, second = (mean_variance(sampler, samples, draws) for sampler in SAMPLERS)
        inputs, output = (first / second).tolist()
        lines.append(
            f"| {samples} | {first[0]:.5f} | {second[0]:.5f} | {inputs:.2f} | {output:.2f} |"
        )
    return "\n".join(lines) + "\n"


def mean_variance(sampler: Sampler, samples: int, draws: int) -> Tensor:
    """Returns (2,) the variance of a coefficient's mean over samples, at Q, K and V, and at O."""
    settings = PAPER.model_copy(update={"adapters": 1})
    drawn = SAMPLER_FUNCTIONS[sampler](
        samples, draws, settings, Generator().manual_seed(samples)
    ).double()
    squares = ((drawn.mean(dim=0) - 1) ** 2).mean(dim=(0, 2))  # (4,); every mean is 1
    return torch.stack([squares[:3].mean(), squares[3]])


def drawing_table() -> str:
    """Returns a Markdown table of the time to draw coefficients, in milliseconds."""
    lines = ["| images | S | independent, ms | balanced, ms |", "|---:" * 4 + "|"]
    for images, samples in ((1, 1), (1, 4), (1, 16), (64, 4), (64, 16)):
        first, second = (drawing_ms(sampler, images, samples) for sampler in SAMPLERS)
        lines.append(f"| {images} | {samples} | {first:.2f} | {second:.2f} |")
    return "\n".join(lines) + "\n"


def drawing_ms(sampler: Sampler, images: int, samples: int, repeats: int = 10) -> float:
    """Returns the minimum time to draw the coefficients of `images` requests."""
    draws = [
        Draw(mode="stoch", samples=samples, seed=seed, sampler=sampler) for seed in range(images)
    ]
    method = EulerLoRAMethod(EULERLORA, NetworkShape(PAPER, BackboneSettings(), classes=2))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        for draw in draws:
            method.draw(draw)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)


def images_of_test_part(model: EulerLoRA, data: Path, count: int) -> Tensor:
    """Returns (count, 3, size, size) evenly spaced images of the model's test part."""
    images = evenly_spaced(checkpoint_dataset(model.config, data).parts[TEST], count)
    preprocessing = model.config.preprocessing
    return torch.stack(
        [network_input(read_image(image.name, image.source), preprocessing) for image in images]
    )


def model_table(model: EulerLoRA, pixels: Tensor, samples: int, repeats: int) -> str:
    """Returns a Markdown table of the standard deviation of the mean probability by S."""
    first, second = (deviations(model, pixels, sampler, samples, repeats) for sampler in SAMPLERS)
    lines = [
        f"{len(pixels)} images, {repeats} repeats of {samples} samples\n",
        "| S | independent | balanced | ratio | equivalent independent samples |",
        "|---:" * 5 + "|",
    ]
    for count, independent in first.items():
        ratio = second[count] / independent
        equivalent = first[1] ** 2 / second[count] ** 2
        lines.append(
            f"| {count} | {independent:.5f} | {second[count]:.5f} | {ratio:.3f} "
            f"| {equivalent:.1f} |"
        )
    return "\n".join(lines) + "\n"


def deviations(
    model: EulerLoRA, pixels: Tensor, sampler: Sampler, samples: int, repeats: int
) -> dict[int, float]:
    """Returns the standard deviation of the mean probability by S = 1, 2, 4, ... samples.

    It is the root of the mean variance over images and classes. The draws of S samples are
    consecutive groups of one draw of `samples`: groups of a balanced draw have the distribution
    of balanced draws of S samples.
    """
    seeds = torch.arange(repeats * len(pixels)).view(repeats, -1).tolist()
    draw = Draw(mode="stoch", samples=samples, sampler=sampler)
    repeated = [
        predict(model, pixels, [draw.model_copy(update={"seed": seed}) for seed in image_seeds])
        for image_seeds in track(seeds, sampler, "repeats", repeats)
    ]
    probabilities = torch.stack(repeated)  # (repeats, images, adapters, samples, classes)
    counts = [2**power for power in range(samples.bit_length()) if samples % 2**power == 0]
    return {count: _deviation(probabilities, count) for count in counts}


def _deviation(probabilities: Tensor, count: int) -> float:
    means: Tensor = probabilities.unflatten(3, (-1, count)).mean(dim=4)
    adapters = means.shape[2]  # independent, so their variances add
    return float((means.var(dim=0).mean() / adapters).sqrt())


def predict(model: EulerLoRA, pixels: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Returns probabilities (images, adapters, samples, classes)."""
    log_probabilities = [
        image
        for start in range(0, len(pixels), BATCH_IMAGES)
        for image in predict_rows(
            model.runtime,
            pixels[start : start + BATCH_IMAGES].to(model.device),
            draws[start : start + BATCH_IMAGES],
        )
    ]
    adapters = model.network.settings.adapters
    probabilities: Tensor = torch.stack(log_probabilities).exp().unflatten(1, (adapters, -1))
    return probabilities


if __name__ == "__main__":
    main()
