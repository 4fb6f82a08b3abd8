"""The command `eulerlora policy fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.nn.openmp import set_openmp_wait_policy
from training.commands.options import (
    PATH,
    data_option,
    device_option,
    precision_option,
    skip_bad_option,
)

if TYPE_CHECKING:
    from eulerlora.settings import PrecisionChoice
    from eulerlora_client.contract.sampling import Mode
    from training.policy.archives import (
        Archive,
    )
    from training.policy.scores import ScoredImages

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
@precision_option("auto", "Fit to predictions")
@click.option(
    "--archive",
    "archives",
    multiple=True,
    metavar="NAME=PATH",
    help="Measure also on a folder or tar archive of labelled pictures. NAME: ph2, pad-ufes-20 or "
    "a .toml file with its labels. Repeat it for several.",
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
    precision: PrecisionChoice,
    archives: tuple[str, ...],
    skip_bad: bool,
    device: str,
) -> None:
    """Fit a policy's thresholds on the calibration part of the checkpoint's data set.

    Sets the urgent threshold to a required sensitivity to melanoma, and the entropy threshold.
    Measures both on the test part, which has no lesion of the other parts, and on other archives,
    and writes them with this evidence to the policy file. A data set without a calibration part is
    fitted on its test part, and only archives are measured.
    \f
    packaged: returns the text of the packaged policy.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, dataset_settings  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.evaluation.report_schema import TEST  # noqa: PLC0415
    from training.policy.archives import measure_archive  # noqa: PLC0415
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
    from training.policy.summary import fit_lines, measured_lines  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch, got --mode det")
    options = SamplingOptions(mode, 1 if mode == "det" else samples or 4)
    others = _archives(archives)
    text = read_text(policy) if policy.exists() else packaged()
    malignant = read_rules(text, str(policy)).malignant
    model = EulerLoRA.load(checkpoint, device, precision)
    images = checkpoint_dataset(model.config, data, skip_bad)
    report_skipped(images)

    def scored(part: str) -> ScoredImages:
        return score_images(model, images.parts[part], options, malignant, part)

    part = CALIBRATION if CALIBRATION in images.parts else TEST
    name = f"{images.name}, {part} part"
    fit = fit_policy(scored(part), sensitivity, uncertain)
    measured = []
    if part != TEST:
        on_test = measure_policy(scored(TEST), fit)
        measured.append(MeasuredOn(f"{images.name}, {TEST} part", on_test))
    for archive in others:
        measured.append(measure_archive(model, archive, options, malignant, fit, skip_bad))
    evidence = evidence_table(model, options, fit, name, measured)
    if not policy.exists():
        create(policy, text)
    version = set_thresholds(policy, fit.urgent, fit.entropy_nats, evidence)
    lines = [*fit_lines(fit, name), *chain.from_iterable(map(measured_lines, measured))]
    click.echo("\n".join(lines))
    if part == TEST:
        click.echo("Not measured on a test part: the fit used it, without a calibration part.")
    settings = dataset_settings(model.config)
    if settings.kind == "ham10000" and settings.split == "paper":
        click.echo("This split shares lesions with training: expect less on new lesions.")
    click.echo(f"{policy}: version {version}")


def _archives(arguments: Sequence[str]) -> list[Archive]:
    """Returns archives from NAME=PATH. Raises UsageError for another form, and SettingsError."""
    from training.data.local_images import read_archive_labels  # noqa: PLC0415
    from training.policy.archives import Archive  # noqa: PLC0415 - imports torch

    archives = []
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not (name and equals and path):
            raise click.UsageError(f"--archive: expected NAME=PATH, got {argument}")
        if not Path(path).exists():
            raise click.UsageError(f"--archive: expected a folder or tar archive, got {path}")
        archives.append(Archive(Path(path), read_archive_labels(name)))
    return archives
