"""Site fits on random halves: `python -m benchmarks.site_splits CHECKPOINT --data LOCAL`.

Fits on one half of the lesions and measures on the other, for many random halves, from one pass of
predictions. Prints the mean of each result and its 5% and 95% quantiles over the halves. A single
half of a small set depends much on which lesions it contains.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch

from eulerlora.checkpoint.files import Checkpoint, load_checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.settings import DEFAULT_RUNTIME
from eulerlora_client.commands.program import packaged_policy
from training.calibration.outputs import CalibrationOutputs
from training.data.images import LabelledImage
from training.data.local_images import LabelNames, LocalImages, read_local_images
from training.evaluation.inference import ModelOutputs, SamplingOptions
from training.policy.file import read_rules
from training.policy.fit import fit_policy
from training.policy.scores import score_outputs
from training.reporting.tables import table
from training.site.calibration import SiteSettings, site_images
from training.site.fit import fit_outputs, outputs_at, site_outputs
from training.site.hold_out import split_groups
from training.site.measurement import SiteMeasurement, SitePolicy, measure_outputs
from training.site.requirements import Needs

HALF = 0.5
OPTIONS = SamplingOptions("stoch", 4)
NEEDS = Needs(kept=0.95, sensitivity=0.95, coverages=(0.9,), always_include_rare=True)


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--class", "renamed", multiple=True, metavar="LABEL=CLASS")
@click.option("--ignore", multiple=True, metavar="LABEL")
@click.option("--splits", type=click.IntRange(1), default=200, show_default=True)
def main(
    checkpoint: Path, data: Path, renamed: tuple[str, ...], ignore: tuple[str, ...], splits: int
) -> None:
    """Fit and measure on random halves of labelled pictures."""
    loaded = load_checkpoint(checkpoint)
    classes = [label.name for label in loaded.config.classes]
    names = LabelNames(classes, dict(entry.split("=", 1) for entry in renamed), ignore)
    local = read_local_images(data, names)
    outputs = site_outputs(loaded, local.images, torch.device("cpu"), DEFAULT_RUNTIME)
    settings = SiteSettings(NEEDS, OPTIONS, packaged_policy(), "the packaged policy")
    results: defaultdict[str, list[float]] = defaultdict(list)
    for seed in range(splits):
        for name, value in _values(_measured(loaded, local, outputs, settings, seed)):
            results[name].append(value)
    rows = [[name, *_summary(values)] for name, values in results.items()]
    click.echo(table([f"{splits} halves", "mean", "5%", "95%"], rows))


def _measured(
    checkpoint: Checkpoint,
    local: LocalImages,
    outputs: CalibrationOutputs,
    settings: SiteSettings,
    seed: int,
) -> SiteMeasurement:
    """Returns the results on the second half of a fit to the first one."""
    split = split_groups(local.images, HALF, seed)
    first, second = (_outputs_of(outputs, local, part) for part in (split.fit, split.measure))
    site = site_images(checkpoint, local, split.fit, settings)
    fit = fit_outputs(checkpoint, first, site)
    fitted = replace(checkpoint, config=fit.config, feature_distance=fit.distance)
    model = EulerLoRA(fitted, torch.device("cpu"))
    malignant = read_rules(settings.policy, settings.policy_name).malignant

    def sampled(part: CalibrationOutputs) -> ModelOutputs:
        scaled = outputs_at(part.stoch, fit.config.temperature)
        kept = slice(0, OPTIONS.samples)
        return ModelOutputs(
            scaled.log_probabilities[:, :, kept],
            scaled.log_partition[:, :, kept],
            scaled.features[:, :, kept],
        )

    scored = score_outputs(model, sampled(first), split.fit, OPTIONS, malignant)
    policy = SitePolicy(malignant, fit_policy(scored, NEEDS.sensitivity))
    return measure_outputs(model, sampled(second), split.measure, OPTIONS, policy)


def _outputs_of(
    outputs: CalibrationOutputs, local: LocalImages, images: Sequence[LabelledImage]
) -> CalibrationOutputs:
    """Returns the outputs of some of the local images."""
    positions = {image.name: index for index, image in enumerate(local.images)}
    rows = [positions[image.name] for image in images]

    def chosen(part: ModelOutputs) -> ModelOutputs:
        return ModelOutputs(
            part.log_probabilities[rows], part.log_partition[rows], part.features[rows]
        )

    return replace(outputs, det=chosen(outputs.det), stoch=chosen(outputs.stoch))


def _values(site: SiteMeasurement) -> Iterator[tuple[str, float]]:
    if site.policy is not None:
        yield "sensitivity to mel (urgent or unfamiliar)", site.policy.melanoma.sensitivity
        yield "mel urgent", site.policy.melanoma.urgent / site.policy.melanoma.lesions
        yield "specificity", site.policy.specificity
    for score, share in site.kept.items():
        yield f"kept by {score}", share.share
    for sets in site.sets:
        for name, covered in sets.classes.items():
            yield f"coverage of {sets.coverage:g} for {name}", covered.lesions.share


def _summary(values: Sequence[float]) -> list[str]:
    low, high = np.quantile(values, [0.05, 0.95])
    return [f"{value:.3f}" for value in (float(np.mean(values)), low, high)]


if __name__ == "__main__":
    main()
