"""The command `eulerlora policy fit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.openmp import set_openmp_wait_policy
from training.commands.options import PATH, data_option, device_option, skip_bad_option

if TYPE_CHECKING:
    from eulerlora.settings import Mode
    from training.policy.fit import ThresholdFit
    from training.policy.threshold import ThresholdCoverage
    from training.recipe.schema import DataSettings


@click.command("fit")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("policy.toml"),
    show_default=True,
    help="Policy file to update; a new file starts as a copy of the packaged policy.",
)
@click.option(
    "--sensitivity",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Required sensitivity to melanoma.",
)
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1, 64),
    help="Samples per adapter in mode stoch; 4 by default.",
)
@skip_bad_option
@device_option
@click.pass_obj
def fit_command(
    packaged: str,
    checkpoint: Path,
    data: Path,
    policy: Path,
    sensitivity: float,
    mode: Mode,
    samples: int | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Fit a policy's urgent threshold to a required sensitivity to melanoma.

    Uses the test part of the checkpoint's data set, whose lesions are not in the train part, and
    writes the threshold with its evidence to the policy file.
    \f
    packaged: text of the packaged policy.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, dataset_settings  # noqa: PLC0415
    from training.data.sources import report_skipped  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.evaluation.report_schema import TEST  # noqa: PLC0415
    from training.policy.file import create, read_rules, set_urgent  # noqa: PLC0415
    from training.policy.fit import evidence_table, fit_threshold, score_images  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch, got --mode det")
    options = SamplingOptions(mode, 1 if mode == "det" else samples or 4)
    if not policy.exists():
        create(policy, packaged)
    rules = read_rules(policy)
    model = EulerLoRA.load(checkpoint, device)
    settings = dataset_settings(model.config)
    images = checkpoint_dataset(model.config, data, skip_bad)
    report_skipped(images)
    name = f"{images.name}, {TEST} part"
    scored = score_images(model, images.parts[TEST], _lesions(settings, data), options, rules)
    fitted = fit_threshold(scored, sensitivity)
    version = set_urgent(policy, fitted.threshold, evidence_table(fitted, model, options, name))
    click.echo("\n".join(_lines(fitted, name)))
    if settings.kind == "ham10000" and settings.split == "paper":
        click.echo("This split shares lesions with training: expect less on new lesions.")
    click.echo(f"{policy}: version {version}")


def _lesions(settings: DataSettings, data: Path) -> Mapping[str, str]:
    """Returns the lesion of each image by name; empty if the data set does not identify them."""
    from training.data.ham10000 import METADATA, read_metadata  # noqa: PLC0415 - imports torch

    if settings.kind != "ham10000":
        return {}
    rows, _ = read_metadata(data / settings.path / METADATA, lambda *_: None)
    return {row.image_id: row.lesion_id for row in rows}


def _lines(fit: ThresholdFit, data: str) -> Iterator[str]:
    from training.evaluation.report_schema import MELANOMA  # noqa: PLC0415 - imports numpy

    melanoma = fit.melanoma
    yield f"Measured on {data}: {fit.images:,} images of {fit.lesions:,} lesions."
    yield f"urgent threshold: {fit.threshold}"
    yield (
        f"sensitivity: {melanoma.share:.3f} ({melanoma.hits} of {melanoma.lesions} lesions of "
        f"{MELANOMA} with all images at or above it; {fit.melanoma_hits} of "
        f"{fit.melanoma_images} images), "
        f"one-sided 95% lower bound {melanoma.lower_bound:.3f}"
    )
    yield f"required: {melanoma.required}, {_verdict(fit)}"
    yield f"specificity: {fit.specificity:.3f} (of {fit.other_images:,} images not malignant)"
    yield f"referral rate: {fit.referral_rate:.3f} (urgent or refer, without image quality)"
    yield f"urgent {fit.urgent:.3f}, refer {fit.refer:.3f}, routine {fit.routine:.3f}"
    yield "Melanoma missed if the threshold were higher, by share of all images below it:"
    yield "coverage  threshold  lesions missed  images missed"
    yield from (_row(coverage) for coverage in fit.coverages)


def _verdict(fit: ThresholdFit) -> str:
    from training.policy.threshold import min_lesions  # noqa: PLC0415 - imports scipy

    if fit.melanoma.established:
        return "established"
    minimum = min_lesions(fit.melanoma.required)
    return f"not established: requires at least {minimum} lesions without a miss"


def _row(coverage: ThresholdCoverage) -> str:
    return (
        f"{coverage.coverage:8.3f}  {coverage.threshold:9.4f}  {coverage.missed_lesions:14}  "
        f"{coverage.missed_images:13}"
    )
