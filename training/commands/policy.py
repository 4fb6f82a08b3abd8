"""The command `eulerlora policy fit`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from eulerlora.model import EulerLoRA
from eulerlora.settings import Mode
from training.commands.evaluate import dataset_of, settings_of
from training.commands.options import PATH, data_option, device_option, skip_bad_option
from training.data.bad_images import announce
from training.data.ham10000 import METADATA, read_metadata
from training.evaluation.inference import SamplingOptions
from training.evaluation.report_schema import MELANOMA, TEST
from training.policy.file import create, read_rules, set_urgent
from training.policy.fit import ThresholdFit, evidence_table, fit_threshold, score_images
from training.policy.threshold import ThresholdCoverage, min_lesions
from training.recipe.schema import DataSettings


@click.command("fit")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("policy.toml"),
    show_default=True,
    help="The file that gets the threshold; one that is not there begins as the packaged policy.",
)
@click.option(
    "--sensitivity",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="The share of melanomas to find.",
)
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option("--samples", type=click.IntRange(1, 64), help="Per adapter, in stoch; 4 by default.")
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
    """Set a policy's urgent threshold for a wanted sensitivity to melanoma.

    The threshold comes from the test part of the checkpoint's own data set, whose lesions the
    model has not seen, and is written to the policy file together with what it finds and misses.
    \f
    packaged: the text of a policy to begin with.
    """
    if mode == "det" and samples is not None:
        raise click.UsageError("--samples belongs to --mode stoch")
    options = SamplingOptions(mode, 1 if mode == "det" else samples or 4)
    if not policy.exists():
        create(policy, packaged)
    rules = read_rules(policy)
    model = EulerLoRA.load(checkpoint, device)
    settings = settings_of(model)
    images = dataset_of(model, data, skip_bad)
    announce(images)
    name = f"{images.name}, {TEST} part"
    scored = score_images(model, images.parts[TEST], _lesions(settings, data), options, rules)
    fitted = fit_threshold(scored, sensitivity)
    version = set_urgent(policy, fitted.threshold, evidence_table(fitted, model, options, name))
    click.echo("\n".join(_lines(fitted, name)))
    if settings.kind == "ham10000" and settings.split == "paper":
        click.echo("This split shares lesions with training: on new lesions expect less.")
    click.echo(f"{policy}: version {version}")


def _lesions(settings: DataSettings, data: Path) -> Mapping[str, str]:
    """The lesion of each image, where the data set knows it."""
    if settings.kind != "ham10000":
        return {}
    rows, _ = read_metadata(data / settings.path / METADATA, lambda *_: None)
    return {row.image_id: row.lesion_id for row in rows}


def _lines(fit: ThresholdFit, data: str) -> Iterator[str]:
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
    yield f"referral rate: {fit.referral_rate:.3f} (urgent or refer; image quality aside)"
    yield f"urgent {fit.urgent:.3f}, refer {fit.refer:.3f}, routine {fit.routine:.3f}"
    yield "Missed, were the threshold so high that this share of all images lay below it:"
    yield "coverage  threshold  lesions missed  images missed"
    yield from (_row(each) for each in fit.coverages)


def _verdict(fit: ThresholdFit) -> str:
    if fit.melanoma.established:
        return "established"
    least = min_lesions(fit.melanoma.required)
    return f"not established: {least} lesions without a miss are the least for it"


def _row(each: ThresholdCoverage) -> str:
    return (
        f"{each.coverage:8.3f}  {each.threshold:9.4f}  {each.missed_lesions:14}  "
        f"{each.missed_images:13}"
    )
