"""Fixed numbers of samples and `auto`: `python -m benchmarks.adaptive_sampling`.

Prints, for independent and balanced samples, the metrics of a checkpoint by number of samples, and
the agreement with 64 other samples and the coverage of the stated errors; draws the first two as a
chart.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks.adaptive_sampling_tables import (
    SampledProbabilities,
    agreement_table,
    chart,
    metrics_table,
)
from benchmarks.error_coverage import error_coverage_table
from benchmarks.sampling import predict
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.images.preprocess import network_input
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.sampling.adaptive import MAX_SAMPLES
from eulerlora.settings import SAMPLERS, Draw, Sampler
from training.data.datasets import checkpoint_dataset, read_ood_set
from training.data.images import LabelledImage, evenly_spaced, read_image
from training.data.progress import track
from training.recipe.schema import OodSettings

REPEATS = 5  # of 16 samples: every repeat is compared with the 64 samples of the other four


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--part", type=click.Choice(["calibration", "test"]), default="test")
@click.option("--images", type=click.IntRange(2), default=150, show_default=True)
@click.option("--ood", type=click.Path(path_type=Path), help="A folder or archive of other images.")
@click.option(
    "--chart", "chart_file", type=click.Path(path_type=Path), help="An SVG or PNG file to write."
)
@click.option("--threads", type=click.IntRange(1), help="Number of torch threads.")
@click.option("--device", default="auto", show_default=True)
def main(
    data: Path,
    checkpoint: Path,
    part: str,
    images: int,
    ood: Path | None,
    chart_file: Path | None,
    threads: int | None,
    device: str,
) -> None:
    """Measure fixed numbers of samples and auto with both samplers."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = EulerLoRA.load(checkpoint, str(choose_device(device)))
    used = evenly_spaced(checkpoint_dataset(model.config, data).parts[part], images)
    others: Sequence[LabelledImage] = ()
    if ood is not None:
        outside = read_ood_set(OodSettings(kind="images", path=str(ood)), Path()).images
        others = evenly_spaced(outside, images)
    labels = torch.tensor([image.label for image in used])
    measured = {sampler: sample(model, used, others, sampler) for sampler in SAMPLERS}
    click.echo(f"{model.config.name}, {model.revision}; {len(used)} images of the {part} part")
    if others:
        click.echo(f"{len(others)} images of {ood}")
    for sampler, sampled in measured.items():
        click.echo(f"\n{sampler}:\n\n{metrics_table(sampled, labels)}")
    click.echo(f"\n{agreement_table(measured)}")
    click.echo(f"\n{error_coverage_table(measured)}")
    if chart_file is not None:
        chart(measured).savefig(chart_file)


def sample(
    model: EulerLoRA,
    inside: Sequence[LabelledImage],
    outside: Sequence[LabelledImage],
    sampler: Sampler,
) -> SampledProbabilities:
    """Returns the trajectories of all images, `REPEATS` times with different seeds."""

    def probabilities(images: Sequence[LabelledImage], name: str) -> Tensor:
        preprocessing = model.config.preprocessing
        pixels = torch.stack(
            [network_input(read_image(image.name, image.source), preprocessing) for image in images]
        )
        seeds = torch.arange(REPEATS * len(images)).view(REPEATS, -1).tolist()
        draw = Draw(mode="stoch", samples=MAX_SAMPLES, sampler=sampler)
        return torch.stack(
            [
                predict(model, pixels, [draw.model_copy(update={"seed": seed}) for seed in repeat])
                for repeat in track(seeds, f"{sampler}, {name}", "repeats", REPEATS)
            ]
        )

    return SampledProbabilities(
        probabilities(inside, "inside"), probabilities(outside, "outside") if outside else None
    )


if __name__ == "__main__":
    main()
