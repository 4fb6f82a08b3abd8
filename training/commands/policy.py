"""The command `eulerlora policy fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.openmp import set_openmp_wait_policy
from training.commands.options import PATH, data_option, device_option, skip_bad_option

if TYPE_CHECKING:
    from eulerlora.settings import Mode
    from training.policy.evidence import MeasuredOn
    from training.policy.fit import PolicyFit
    from training.policy.scores import ScoredImages
    from training.policy.threshold import ThresholdCoverage

CALIBRATION = "calibration"


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
@click.option(
    "--uncertain",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="Largest share of the calibration images that may reach the entropy threshold.",
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
    packaged: Callable[[], str],
    checkpoint: Path,
    data: Path,
    policy: Path,
    sensitivity: float,
    uncertain: float,
    mode: Mode,
    samples: int | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Fit a policy's thresholds on the calibration part of the checkpoint's data set.

    Sets the urgent threshold to a required sensitivity to melanoma, and the entropy threshold.
    Measures both on the test part, which has no lesion of the other parts, and writes them with
    this evidence to the policy file. A data set without a calibration part is fitted on its test
    part, and nothing is measured.
    \f
    packaged: returns the text of the packaged policy.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, dataset_settings  # noqa: PLC0415
    from training.data.sources import report_skipped  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.evaluation.report_schema import TEST  # noqa: PLC0415
    from training.policy.evidence import MeasuredOn, evidence_table  # noqa: PLC0415
    from training.policy.file import (  # noqa: PLC0415
        create,
        read_rules,
        read_text,
        set_thresholds,
    )
    from training.policy.fit import fit_policy  # noqa: PLC0415
    from training.policy.measurement import measure_policy  # noqa: PLC0415
    from training.policy.scores import score_images  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch, got --mode det")
    options = SamplingOptions(mode, 1 if mode == "det" else samples or 4)
    text = read_text(policy) if policy.exists() else packaged()
    malignant = read_rules(text, str(policy)).malignant
    model = EulerLoRA.load(checkpoint, device)
    images = checkpoint_dataset(model.config, data, skip_bad)
    report_skipped(images)

    def scored(part: str) -> ScoredImages:
        return score_images(model, images.parts[part], options, malignant, part)

    part = CALIBRATION if CALIBRATION in images.parts else TEST
    name = f"{images.name}, {part} part"
    fit = fit_policy(scored(part), sensitivity, uncertain)
    measured = None
    if part != TEST:
        measured = MeasuredOn(f"{images.name}, {TEST} part", measure_policy(scored(TEST), fit))
    evidence = evidence_table(model, options, fit, name, measured)
    if not policy.exists():
        create(policy, text)
    version = set_thresholds(policy, fit.urgent, fit.entropy_nats, evidence)
    click.echo("\n".join([*_fit_lines(fit, name), *_measured_lines(measured)]))
    settings = dataset_settings(model.config)
    if settings.kind == "ham10000" and settings.split == "paper":
        click.echo("This split shares lesions with training: expect less on new lesions.")
    click.echo(f"{policy}: version {version}")


def _fit_lines(fit: PolicyFit, data: str) -> Iterator[str]:
    from training.evaluation.report_schema import MELANOMA  # noqa: PLC0415 - imports numpy

    melanoma = fit.melanoma
    yield f"Fitted on {data}: {fit.images:,} images of {fit.lesions:,} lesions."
    yield f"urgent threshold: {fit.urgent}"
    yield (
        f"{melanoma.hits} of {melanoma.lesions} lesions of {MELANOMA} with all images at or above "
        f"it ({fit.melanoma_hits} of {fit.melanoma_images} images), "
        f"one-sided 95% lower bound {melanoma.lower_bound:.3f}"
    )
    yield f"required: {melanoma.required}, {_verdict(fit)}"
    yield f"entropy threshold: {fit.entropy_nats} nats (reached by {fit.uncertain:.3f} of images)"
    yield "Melanoma missed if the threshold were higher, by share of all images below it:"
    yield "coverage  threshold  lesions missed  images missed"
    yield from (_row(coverage) for coverage in fit.coverages)


def _verdict(fit: PolicyFit) -> str:
    from training.policy.threshold import min_lesions  # noqa: PLC0415 - imports scipy

    if fit.melanoma.established:
        return "established"
    minimum = min_lesions(fit.melanoma.required)
    return f"not established: requires at least {minimum} lesions without a miss"


def _measured_lines(measured: MeasuredOn | None) -> Iterator[str]:
    from training.evaluation.report_schema import MELANOMA  # noqa: PLC0415 - imports numpy

    if measured is None:
        yield "Not measured: the data set has no calibration part, and the fit used its test part."
        return
    result, melanoma = measured.measurement, measured.measurement.melanoma
    low, high = melanoma.interval
    yield f"Measured on {measured.data}: {result.images:,} images of {result.lesions:,} lesions."
    yield (
        f"{melanoma.lesions} lesions of {MELANOMA}: {melanoma.found} urgent, {melanoma.unfamiliar} "
        f"unfamiliar (seen by a person), {melanoma.missed} missed"
    )
    yield (
        f"sensitivity: {melanoma.sensitivity:.3f} (urgent or unfamiliar; exact 95% interval "
        f"{low:.3f} to {high:.3f})"
    )
    yield (
        f"specificity: {result.specificity:.3f} (of {result.other_images:,} images not malignant, "
        "neither urgent nor unfamiliar)"
    )
    yield f"referral rate: {result.referral_rate:.3f} (all but routine, without image quality)"
    yield (
        f"urgent {result.urgent:.3f}, unfamiliar {result.unfamiliar:.3f}, "
        f"refer {result.refer:.3f}, routine {result.routine:.3f}"
    )


def _row(coverage: ThresholdCoverage) -> str:
    return (
        f"{coverage.coverage:8.3f}  {coverage.threshold:9.4f}  {coverage.missed_lesions:14}  "
        f"{coverage.missed_images:13}"
    )
