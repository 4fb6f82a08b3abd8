"""A later first sampled block: `python -m benchmarks.sampled_blocks --data DIR`.

Prints, for a first sampled block of 0, a quarter, half and three quarters of the depth, the
calibration of the answers on images of the calibration part, and what a pass costs.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint, sampled_from
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.scores.uncertainty import summarise
from training.data.datasets import checkpoint_dataset
from training.data.images import LabelledImage, evenly_spaced
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import classification_metrics, error_ranking
from training.reporting.tables import table

HEAD = [
    "first sampled block", "block passes", "time", "accuracy", "NLL", "ECE", "entropy",
    "mutual information", "MSP finds errors, AUROC",
]  # fmt: skip
TIMED = 20  # passes of one image


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--images", type=click.IntRange(2), default=200, show_default=True)
@click.option("--samples", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--device", default="auto", show_default=True)
def main(data: Path, checkpoint: Path, images: int, samples: int, device: str) -> None:
    """Measure a later first sampled block."""
    loaded = load_checkpoint(checkpoint)
    used = evenly_spaced(checkpoint_dataset(loaded.config, data).parts["calibration"], images)
    layers = loaded.config.backbone.settings.layers
    starts = sorted({quarter * layers // 4 for quarter in range(4)})
    times = [pass_seconds(_model(loaded, start, device), samples) for start in starts]
    rows = [
        [str(start), f"{_passes(start, layers, samples):.0%}", f"{seconds / times[0]:.0%}",
         *_metrics(_model(loaded, start, device), used, samples)]
        for start, seconds in zip(starts, times, strict=True)
    ]  # fmt: skip
    click.echo(f"{loaded.config.name}, {loaded.revision}; {len(used)} images, {samples} samples\n")
    click.echo(table(HEAD, rows))


def pass_seconds(model: EulerLoRA, samples: int) -> float:
    """Returns the least time of a pass of one image."""
    size = model.config.preprocessing.size
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    options = model.predict_options("stoch", samples, seed=0)
    inputs = [model.prepare(image[0], options)]
    seconds = []
    for _ in range(TIMED):
        started = time.perf_counter()
        model.predict_inputs(inputs, options)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _model(loaded: Checkpoint, start: int, device: str) -> EulerLoRA:
    return EulerLoRA(sampled_from(loaded, start), choose_device(device))


def _passes(start: int, layers: int, samples: int) -> float:
    """Returns the share of the blocks' rows that is computed."""
    return (start + (layers - start) * samples) / (layers * samples)


def _metrics(model: EulerLoRA, images: Sequence[LabelledImage], samples: int) -> list[str]:
    (outputs,) = predict_all(model, images, [SamplingOptions("stoch", samples)], "images")
    trajectories = outputs.log_probabilities.flatten(1, 2)
    labels = torch.tensor([image.label for image in images]).numpy()
    metrics = classification_metrics(trajectories, labels, unit_weights(len(labels)))
    uncertainty = summarise(trajectories.exp())
    wrong = uncertainty.probabilities.argmax(dim=-1).numpy() != labels
    clusters = torch.arange(len(labels)).numpy()
    ranking = error_ranking(uncertainty, wrong, clusters)["msp"]["auroc"]
    auroc = "" if ranking is None else f"{ranking.value:.4f}"
    return [
        f"{metrics['accuracy'].item():.3f}", f"{metrics['nll'].item():.4f}",
        f"{metrics['ece'].item():.4f}", f"{uncertainty.entropy.mean():.4f}",
        f"{uncertainty.mutual_information.mean():.4f}", auroc,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
