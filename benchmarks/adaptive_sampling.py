"""What more samples buy, and how many `samples="auto"` takes: `python -m benchmarks.adaptive_sampling`.

Prints, for independent and balanced samples, what a checkpoint's answers are worth by the number of
samples, and how `auto` compares with 64 other samples; draws both as a picture.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.adaptive_sampling_tables import Found, agreement_table, drawing, worth_table
from benchmarks.sampling import answers
from eulerlora.adaptive_sampling import MAX_SAMPLES
from eulerlora.checkpoint import DEFAULT_CHECKPOINT
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.preprocess import resize
from eulerlora.settings import SAMPLERS, Draw, Sampler
from training.data.datasets import checkpoint_dataset, read_ood_set
from training.data.labelled_images import LabelledImage, evenly_spaced
from training.data.sources import read_image
from training.recipe.schema import OodSettings

REPEATS = 5  # of 16 samples: four are the 64 that the fifth is compared with, each in turn


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--part", type=click.Choice(["calibration", "test"]), default="test")
@click.option("--images", type=click.IntRange(2), default=150, show_default=True)
@click.option("--ood", type=click.Path(path_type=Path), help="A folder or archive of other images.")
@click.option("--picture", type=click.Path(path_type=Path), help="An SVG or PNG file to write.")
@click.option("--threads", type=click.IntRange(1), help="Instead of torch's own choice.")
@click.option("--device", default="auto", show_default=True)
def main(
    data: Path,
    checkpoint: Path,
    part: str,
    images: int,
    ood: Path | None,
    picture: Path | None,
    threads: int | None,
    device: str,
) -> None:
    """Measure fixed numbers of samples and auto, with both samplers."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = EulerLoRA.load(checkpoint, str(choose_device(device)))
    used = evenly_spaced(checkpoint_dataset(model.config, data).parts[part], images)
    others: Sequence[LabelledImage] = ()
    if ood is not None:
        found = read_ood_set(OodSettings(kind="images", path=str(ood)), Path()).images
        others = evenly_spaced(found, images)
    labels = torch.tensor([each.label for each in used])
    measured = {each: found_with(model, used, others, each) for each in SAMPLERS}
    click.echo(f"{model.config.name}, {model.revision}; {len(used)} images of the {part} part")
    if others:
        click.echo(f"{len(others)} images of {ood}")
    for sampler, each in measured.items():
        click.echo(f"\n{sampler}:\n\n{worth_table(each, labels)}")
    click.echo(f"\n{agreement_table(measured)}")
    if picture is not None:
        drawing(measured).savefig(picture)


def found_with(
    model: EulerLoRA,
    inside: Sequence[LabelledImage],
    outside: Sequence[LabelledImage],
    sampler: Sampler,
) -> Found:
    """All trajectories of the images, `REPEATS` times, each time with seeds of their own."""

    def probabilities(images: Sequence[LabelledImage], name: str) -> Tensor:
        size = model.config.preprocessing.size
        pixels = torch.stack([resize(read_image(each.name, each.source), size) for each in images])
        seeds = torch.arange(REPEATS * len(images)).view(REPEATS, -1).tolist()
        asked = Draw(mode="stoch", samples=MAX_SAMPLES, sampler=sampler)
        return torch.stack(
            [
                answers(model, pixels, [asked.model_copy(update={"seed": seed}) for seed in own])
                for own in tqdm(seeds, f"{sampler}, {name}", disable=None)
            ]
        )

    return Found(
        probabilities(inside, "inside"), probabilities(outside, "outside") if outside else None
    )


if __name__ == "__main__":
    main()
