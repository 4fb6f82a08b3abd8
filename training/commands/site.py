"""The command `eulerlora site fit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.nn.openmp import set_openmp_wait_policy
from training.commands.options import (
    PATH,
    Coverages,
    device_option,
    out_option,
    precision_option,
    skip_bad_option,
)

if TYPE_CHECKING:
    from eulerlora.settings import PrecisionChoice
    from eulerlora_client.contract.sampling import Mode
    from training.data.local_images import LocalImages
    from training.site.calibration import SiteReport

KEPT = 0.95
"""Share of a site's pictures that the OOD thresholds keep."""


@click.group("site")
def site_command() -> None:
    """Fit a checkpoint's thresholds to a site's own pictures."""


@site_command.command("fit")
@click.argument("checkpoint", type=PATH)
@click.option(
    "--data",
    type=PATH,
    required=True,
    help="Labelled pictures: a folder per class, or labels.csv with path, label and group.",
)
@out_option
@click.option(
    "--class",
    "renamed",
    multiple=True,
    metavar="LOCAL=CLASS",
    help="Class of the checkpoint for a local label; repeat it for several labels.",
)
@click.option(
    "--ignore", "ignored", multiple=True, metavar="LOCAL", help="Leave out pictures of this label."
)
@click.option("--policy", type=PATH, help="Policy to start from; the packaged one by default.")
@click.option(
    "--sensitivity",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Required sensitivity to melanoma.",
)
@click.option(
    "--coverage",
    type=Coverages(),
    default="0.9",
    show_default=True,
    help="Probabilities of the prediction sets, such as 0.9,0.95.",
)
@click.option(
    "--always-include-rare",
    is_flag=True,
    help="Put classes with too few lesions for a coverage in every set.",
)
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Fit without this share of the lesions, and measure on them, such as 0.5.",
)
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1, 64),
    help="Samples per adapter of the policy in mode stoch; 4 by default.",
)
@precision_option("auto", "Fit to predictions")
@skip_bad_option
@device_option
@click.pass_obj
def fit_command(
    packaged: Callable[[], str],
    checkpoint: Path,
    data: Path,
    out: Path,
    renamed: tuple[str, ...],
    ignored: tuple[str, ...],
    policy: Path | None,
    sensitivity: float,
    coverage: tuple[float, ...],
    always_include_rare: bool,
    hold_out: float | None,
    mode: Mode,
    samples: int | None,
    precision: PrecisionChoice,
    skip_bad: bool,
    device: str,
) -> None:
    """Fit thresholds, prediction sets and the policy to a site's own labelled pictures.

    Writes a new checkpoint with its policy, OUT/policy.toml, and changes no other file. Prints how
    many lesions each part needs; parts with too few stay as they were.
    \f
    packaged: returns the text of the packaged policy.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.checkpoint.files import check_free, read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.data.local_images import LabelNames, read_local_images  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.policy.file import read_text  # noqa: PLC0415
    from training.site.calibration import SiteSettings, calibrate_site  # noqa: PLC0415
    from training.site.requirements import Needs  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch, got --mode det")
    check_free(out)  # fails before the long work rather than after it
    settings = SiteSettings(
        needs=Needs(KEPT, sensitivity, coverage, always_include_rare),
        options=SamplingOptions(mode, 1 if mode == "det" else samples or 4),
        policy=packaged() if policy is None else read_text(policy),
        policy_name="the packaged policy" if policy is None else str(policy),
        hold_out=hold_out,
        precision=precision,
    )
    classes = [label.name for label in read_config(checkpoint).classes]
    names = LabelNames(classes, _mapping(renamed), ignored)
    local = read_local_images(data, names, skip_bad)
    report_skipped(local)
    click.echo("\n".join(_data_lines(local, classes)))
    report = calibrate_site(checkpoint, local, out, settings, choose_device(device))
    click.echo("\n".join(_report_lines(report, out)))


def _mapping(renamed: tuple[str, ...]) -> dict[str, str]:
    """Returns the classes by local label. Raises UsageError for another form than LOCAL=CLASS."""
    mapping: dict[str, str] = {}
    for item in renamed:
        label, equals, name = item.rpartition("=")
        if not (label and equals and name):
            raise click.UsageError(f"--class: expected LOCAL=CLASS, got {item}")
        if mapping.setdefault(label, name) != name:
            raise click.UsageError(f"--class: expected one class for {label}, got several")
    return mapping


def _data_lines(local: LocalImages, classes: list[str]) -> Iterator[str]:
    counts = Counter(classes[image.label] for image in local.images)
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    yield f"{local.name}: {len(local.images):,} images ({listed}), {local.ignored:,} ignored"
    if local.unit == "image":
        yield (
            "The data name no lesions or patients: every image counts as a lesion. If some show "
            "the same lesion, bounds and coverages are too optimistic; name it in the column group."
        )


def _report_lines(report: SiteReport, out: Path) -> Iterator[str]:
    measured = f", measured on {report.measured:,} others" if report.measured else ""
    yield f"Fitted on {report.fitted:,} images{measured}.\n"
    yield f"{report.tables}\n"
    yield f"{out}: revision {report.revision[:19]}"
    if report.has_policy:
        yield f"eulerlora serve {out} --policy {out / 'policy.toml'}"
    else:
        yield "No policy was written: it needs a lesion of melanoma."
