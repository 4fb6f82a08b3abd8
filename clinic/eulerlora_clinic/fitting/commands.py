"""The commands `eulerlora policy fit` and `eulerlora site fit`.

Both print the same table as `eulerlora calibrate`: the parts that were fitted, and from how many
lesions or images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import CHECKPOINT, PRECISION_CHOICES, check_outside, configure_openmp
from eulerlora_contract.output_files import check_writable
from eulerlora_contract.program import PATH, SHARE, SamplesParameter
from eulerlora_contract.sampling import AUTO, DEFAULT_SAMPLES, PRECISIONS, Auto
from training.commands.options import (
    COVERAGES,
    check_samples,
    data_option,
    image_options,
    mode_option,
    out_option,
    precision_option,
    samples_option,
)

if TYPE_CHECKING:
    from eulerlora.checkpoint.config import CheckpointConfig
    from eulerlora.model import EulerLoRA
    from eulerlora_clinic.fitting.policy import PolicyInputs, PolicyMeasurement
    from eulerlora_clinic.fitting.site import SiteReport
    from eulerlora_clinic.policy.policy import Policy
    from eulerlora_contract.checkpoints import TargetClasses
    from eulerlora_contract.sampling import Mode, Precision, PrecisionChoice
    from training.data.dataset import LabelTable
    from training.data.local_images import LocalImages
    from training.recipe.archives import ArchiveLabels

_predictive_value_option = click.option(
    "--predictive-value",
    type=SHARE,
    default=0.5,
    show_default=True,
    help="Required share of target lesions among the urgent ones, by which the urgent threshold is "
    "fitted.",
)


@click.command(
    "fit",
    epilog="\b\nExample:\n  eulerlora policy fit checkpoint --data data --policy policy.toml",
)
@click.argument("checkpoint", type=CHECKPOINT)
@data_option
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("policy.toml"),
    show_default=True,
    help="Policy file to update; a new file starts as a copy of the packaged policy.",
)
@click.option(
    "--rule",
    metavar="RULE",
    help='How many critical lesions the routine threshold may miss: "none missed in calibration", '
    'or "sensitivity = 0.95", as many as leave its lower bound at 0.90. Default: the rule of the '
    "policy file, or the first one.",
)
@_predictive_value_option
@click.option(
    "--uncertain",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="Largest share of the calibration images that may reach the entropy threshold.",
)
@mode_option
@click.option(
    "--samples",
    type=SamplesParameter(),
    help=f"Samples per adapter in mode stoch, {DEFAULT_SAMPLES} by default; auto: fit to "
    f"{DEFAULT_SAMPLES}, and measure the answers of samples=auto.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISION_CHOICES),
    default=AUTO,
    show_default=True,
    help="Fit to predictions in this precision; auto: in each that `eulerlora serve` may choose.",
)
@click.option(
    "--archive",
    "archives",
    multiple=True,
    metavar="NAME=PATH",
    help="Measure also on a folder or archive of labelled pictures. NAME: ph2, pad-ufes-20 or "
    "a .toml file with its labels. Repeat it for several.",
)
@click.option(
    "--fold",
    "folds",
    type=CHECKPOINT,
    multiple=True,
    help="Fit to the predictions of this checkpoint for its calibration part, not to those of "
    "CHECKPOINT, from which it differs in data.fold only. Repeat it for every fold.",
)
@click.option(
    "--far",
    "far_archives",
    multiple=True,
    metavar="NAME=PATH",
    help="Fit [unfamiliar], which images are never urgent, to the target lesions of the "
    "calibration part and to half of these, and measure it on the other half. As --archive. "
    "Without it, that of the policy file is only relaxed, or removed for another model.",
)
@click.option(
    "--chart",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Draw what every threshold would do to lesions, with exact intervals: a .png, .svg or "
    ".pdf file.",
)
@image_options
def policy_fit_command(
    checkpoint: Path,
    data: Path,
    policy: Path,
    rule: str | None,
    predictive_value: float,
    uncertain: float,
    mode: Mode,
    samples: int | Auto | None,
    precision: PrecisionChoice,
    archives: tuple[str, ...],
    folds: tuple[Path, ...],
    far_archives: tuple[str, ...],
    chart: Path | None,
    skip_bad: bool,
    table: LabelTable,
    device: str,
) -> None:
    """Fit a policy's thresholds on the calibration part of the checkpoint's data set.

    Sets the routine threshold by a rule about missed lesions of the critical classes, the urgent
    one by a required share of target lesions from there on, and the entropy threshold. A routine
    threshold for which there are too few critical lesions stays as it is, and so does an urgent one
    that cannot be established. Measures them on the test part, which has no lesion of the other
    parts, and on other archives, and writes them with this evidence to the policy file. A data set
    without a calibration part is fitted on its test part, and only archives are measured. The
    thresholds hold in each precision that `eulerlora serve` may choose for the checkpoint, and each
    has its evidence; --precision names a single one. With --fold, all training lesions calibrate:
    each is predicted by a checkpoint that was not trained on it.
    """
    configure_openmp()
    # These import torch.
    from eulerlora.checkpoint.files import read_config  # noqa: PLC0415
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from eulerlora_clinic.fitting.far import (  # noqa: PLC0415
        FarLesions,
        HalvedArchive,
        fit_far,
        relaxed,
    )
    from eulerlora_clinic.fitting.folds import check_folds, joined  # noqa: PLC0415
    from eulerlora_clinic.fitting.parts import (  # noqa: PLC0415
        far_table,
        policy_parts,
        results_table,
    )
    from eulerlora_clinic.fitting.policy import (  # noqa: PLC0415
        CURVE_THRESHOLDS,
        RULES,
        PolicyFile,
        check_classes,
        evidence_of,
        fit_policy,
        measure_archive,
        measure_policy,
        operating_curves,
        read_archive,
        score_images,
    )
    from eulerlora_clinic.policy.results import performance_text  # noqa: PLC0415
    from training.calibration.parts import parts_table  # noqa: PLC0415
    from training.data.copies import (  # noqa: PLC0415
        image_digests,
        images_in_training,
        named_with_seen,
    )
    from training.data.datasets import checkpoint_dataset  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.evaluation.report_schema import TEST  # noqa: PLC0415
    from training.reporting.charts import threshold_chart, write_figure  # noqa: PLC0415

    check_samples(mode, samples)
    if rule is not None and rule not in RULES:
        raise click.UsageError(f"--rule: expected one of {', '.join(RULES)}; got {rule}")
    if chart is not None and chart.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise click.UsageError(f"--chart: expected a .png, .svg or .pdf file, got {chart}")
    check_writable(policy)
    if chart is not None:
        check_outside(chart, data)
    others, further = _archives(archives, "--archive"), _archives(far_archives, "--far")
    config = read_config(checkpoint)
    choices: Sequence[Precision] = PRECISIONS if precision == AUTO else (precision,)
    if precision == AUTO and config.bfloat16_fault() is not None:
        choices = ("float32",)
    models = [EulerLoRA.load(checkpoint, device, one) for one in choices]
    exists = policy.exists()
    file = PolicyFile.read(policy) if exists else PolicyFile.read(None, config.target)
    target = file.policy.target
    images = checkpoint_dataset(config, data, skip_bad, table)
    report_skipped(images)
    part = images.held_out
    of_folds = [read_config(path) for path in folds]
    check_folds(config, of_folds)
    held_out = {
        path: checkpoint_dataset(one, data, skip_bad, table).parts["calibration"]
        for path, one in zip(folds, of_folds, strict=True)
    } or {checkpoint: images.parts[part]}
    members_of_fit = [image for members in held_out.values() for image in members]
    check_classes(models[0], target)
    measured_archives = [
        (labels, read_archive(path, config.classes, labels, skip_bad)) for path, labels in others
    ]
    halved = [
        HalvedArchive.of(
            labels.title,
            read_archive(path, config.classes, labels, skip_bad),
            [config.class_names.index(name) for name in target.classes],
        )
        for path, labels in further
    ]
    of_fit = image_digests(
        [*members_of_fit, *(image for archive in halved for image in archive.parts["fit"])]
        if others
        else ()
    )
    seen = [
        image
        for path, members in held_out.items()
        for image in images_in_training(path, members) or ()
    ]
    remark = f" (training was shown {len(seen):,} of its images)" if seen else ""
    described = f"calibration parts of {len(folds)} folds" if folds else f"{part} part"
    name = f"{images.name}, {described}{remark}"
    test_name = named_with_seen(f"{images.name}, {TEST} part", checkpoint, images.parts[TEST])

    def scored(model: EulerLoRA, part: str, policy: Policy | None = None) -> PolicyInputs:
        label = f"{part}, {model.precision}"
        options = model.options(mode, samples)
        return score_images(model, images.parts[part], options, target, label, policy)

    def fit_inputs(model: EulerLoRA) -> PolicyInputs:
        if not folds:
            return scored(model, part)
        parts = []
        for path, members in held_out.items():
            of_fold = EulerLoRA.load(path, device, model.precision)
            label = f"{path.name}, {model.precision}"
            options = of_fold.options(mode, samples)
            parts.append(score_images(of_fold, members, options, target, label))
        return joined(parts, members_of_fit)

    def measurements(model: EulerLoRA) -> Iterator[PolicyMeasurement]:
        if folds or part != TEST:
            yield measure_policy(scored(model, TEST, fitted), fitted, test_name)
        options = model.options(mode, samples)
        for labels, members in measured_archives:
            yield measure_archive(model, members, labels, options, fitted, of_fit)

    def far_lesions(model: EulerLoRA, inputs: PolicyInputs) -> Iterator[FarLesions]:
        yield FarLesions.of(name, "fit", inputs, fit.target.urgent)
        for archive in halved:
            yield from archive.lesions(model, model.options(mode, samples), fit.target)

    fitted_images = [fit_inputs(model) for model in models]
    chosen = RULES[rule or target.rule or "none missed in calibration"]
    fits = fit_policy(fitted_images, target, chosen, predictive_value, uncertain)
    fitted, (fit, *_) = file.fitted(fits[0]), fits
    revisions = [one.revision for one in file.policy.evidence]
    known = file.policy.unfamiliar if models[0].revision in revisions else None
    far = [
        list(far_lesions(model, inputs)) if halved or known else []
        for model, inputs in zip(models, fitted_images, strict=True)
    ]
    rules = fit_far(far) if halved else relaxed(known, far) if known else None
    fitted = fitted.model_copy(update={"unfamiliar": rules})
    far_evidence = [[lesions.evidence(rules) for lesions in parts if rules] for parts in far]
    measured = [list(measurements(model)) for model in models]
    evidence = tuple(
        evidence_of(
            model, model.options(mode, samples), fit, name, results, len(seen), len(folds), of_far
        )
        for model, fit, results, of_far in zip(models, fits, measured, far_evidence, strict=True)
    )
    fitted = fitted.model_copy(update={"evidence": evidence})
    file.write(policy, fitted)
    if chart is not None:
        curves = {f"{name} (fit), {fit.unit}s": operating_curves(fitted_images[0])} | {
            f"{result.evidence.data}, {result.evidence.unit}s": result.curves
            for result in measured[0]
        }
        marks = {"routine": fitted.target.routine, "urgent": fitted.target.urgent}
        title = f"Thresholds on the probability of {fitted.target.name}, {config.name}"
        write_figure(threshold_chart(curves, CURVE_THRESHOLDS, marks, title), chart)
    click.echo(f"Fitted on {name}: {fit.images:,} images of {fit.lesions:,} {fit.unit}s.\n")
    click.echo(f"Rule: {chosen.name}, with a lower bound of {chosen.bound:g} or more.\n")
    for choice, of_precision, of_far in zip(choices, fits, far_evidence, strict=True):
        click.echo(f"In {choice}:\n\n{parts_table(policy_parts(of_precision, len(seen)))}\n")
        if rules is not None:
            click.echo(f"{far_table(rules, of_far)}\n")
    if any(measured):
        click.echo(f"{performance_text(fitted)}\n")
    for choice, results in zip(choices, measured, strict=True):
        if results:
            columns = {result.evidence.data: result.results for result in results}
            click.echo(f"{results_table(f'by image, {choice}', columns)}\n")
    if part == TEST and not folds:
        click.echo("Not measured on a test part: the fit used it, without a calibration part.")
    if file.policy.unfamiliar is not None and rules is None:
        click.echo(
            "warning: [unfamiliar] was fitted to another model and is removed, so that an image of "
            "anything can be urgent; --far fits it"
        )
    click.echo(f"{policy}: version {fitted.version}")
    for line in _warning_lines(fitted):
        click.echo(line)


def _warning_lines(policy: Policy) -> Iterator[str]:
    """Yields what the fit did not show in some precision."""
    from eulerlora_clinic.policy.results import not_established  # noqa: PLC0415 - pydantic

    for notice in dict.fromkeys(not_established(policy, one) for one in policy.evidence):
        if notice is not None:
            yield f"warning: {notice}"


def _archives(arguments: Sequence[str], option: str) -> list[tuple[Path, ArchiveLabels]]:
    from training.recipe.archives import read_archive_labels  # noqa: PLC0415 - imports torch

    archives = []
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not (name and equals and path):
            raise click.UsageError(f"{option}: expected NAME=PATH, got {argument}")
        if not Path(path).exists():
            raise click.UsageError(f"{option}: expected a folder or archive, got {path}")
        archives.append((Path(path), read_archive_labels(name)))
    return archives


@click.group("site")
def site_command() -> None:
    """Fit a checkpoint to a site's own pictures."""


@site_command.command(
    "fit",
    epilog="\b\nExample:\n  eulerlora site fit checkpoint --data pictures --out site",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.option(
    "--data",
    type=PATH,
    required=True,
    help="Labelled pictures: a folder per class, or labels.csv with path, label and group.",
)
@out_option
@click.option("--policy", type=PATH, help="Policy to start from; the packaged one by default.")
@click.option(
    "--target",
    "target",
    multiple=True,
    metavar="CLASS",
    help="A class that counts: images are urgent or referred by the summed probability of these, "
    "and --sensitivity is that to their lesions. Repeat it for several. Default: those of the "
    "checkpoint, or of the policy.",
)
@click.option("--target-name", metavar="WORD", help="A word for all of them, such as malignant.")
@click.option(
    "--sensitivity",
    type=SHARE,
    default=0.95,
    show_default=True,
    help="Required sensitivity to the critical classes, by which the routine threshold is fitted.",
)
@_predictive_value_option
@click.option(
    "--coverage",
    type=COVERAGES,
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
    type=SHARE,
    metavar="SHARE",
    help="Fit without this share of the lesions, and measure on them, such as 0.5; the heads are "
    "refitted only with it.",
)
@mode_option
@samples_option
@precision_option("auto", "Fit to predictions")
@image_options
def _site_fit_command(
    checkpoint: Path,
    data: Path,
    out: Path,
    policy: Path | None,
    target: tuple[str, ...],
    target_name: str | None,
    sensitivity: float,
    predictive_value: float,
    coverage: tuple[float, ...],
    always_include_rare: bool,
    hold_out: float | None,
    mode: Mode,
    samples: int | None,
    precision: PrecisionChoice,
    skip_bad: bool,
    table: LabelTable,
    device: str,
) -> None:
    """Fit heads, thresholds, prediction sets and the policy to a site's own labelled pictures.

    Writes a new checkpoint with its policy, OUT/policy.toml, and changes no other file. Prints how
    many lesions each part needs; parts with too few stay as they were. The heads stay, unless the
    pictures of --hold-out show that refitted ones are better.
    """
    configure_openmp()
    # These import torch.
    from eulerlora.checkpoint.files import read_config  # noqa: PLC0415
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from eulerlora_clinic.fitting.policy import PolicyFile  # noqa: PLC0415
    from eulerlora_clinic.fitting.site import SiteSettings, calibrate_site  # noqa: PLC0415
    from eulerlora_contract.output_files import check_free  # noqa: PLC0415
    from training.adaptation.summary import copies_lines, print_lines  # noqa: PLC0415
    from training.calibration.thresholds import CoverageSettings  # noqa: PLC0415
    from training.data.copies import check_images  # noqa: PLC0415
    from training.data.images import ImageParts, report_skipped  # noqa: PLC0415
    from training.data.local_images import read_local_images  # noqa: PLC0415

    check_samples(mode, samples)
    config = read_config(checkpoint)
    settings = SiteSettings(
        sensitivity=sensitivity,
        predictive_value=predictive_value,
        coverage=CoverageSettings(coverage, always_include_rare),
        options=EulerLoRA.load(checkpoint, device, precision).options(mode, samples),
        policy=PolicyFile.read(policy, _target(config, target, target_name, policy)),
        hold_out=hold_out,
    )
    check_free(out)  # fails before the long work rather than after it
    classes = config.class_names
    local = read_local_images(data, config.classes, table, skip_bad=skip_bad)
    report_skipped(local)
    parts = ImageParts(local.name, config.classes, {"pictures": local.images})
    check = check_images(parts, config.preprocessing.input_side)
    print_lines(copies_lines(check, refused=True))
    check.refuse_copies()
    click.echo("\n".join(_data_lines(local, classes)))
    report = calibrate_site(checkpoint, local, out, settings, device)
    click.echo("\n".join(_report_lines(report, out)))


def _target(
    config: CheckpointConfig, classes: tuple[str, ...], word: str | None, policy: Path | None
) -> TargetClasses | None:
    """The target of --target, or the checkpoint's for a new policy; None for a policy's."""
    from eulerlora_contract.checkpoints import TargetClasses  # noqa: PLC0415

    if not classes:
        if word is not None:
            raise click.UsageError("--target-name requires --target")
        return config.target if policy is None else None
    names = {label.name: label.description.partition(" (")[0] for label in config.classes}
    for name in classes:
        if name not in names:
            raise click.UsageError(f"--target: expected one of {', '.join(names)}, got {name}")
    name = word or " or ".join(names[name] for name in classes)
    return TargetClasses.model_validate({"name": name, "classes": classes})


def _data_lines(local: LocalImages, classes: Sequence[str]) -> Iterator[str]:
    counts = Counter(classes[image.label] for image in local.images)
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    yield f"{local.name}: {len(local.images):,} images ({listed}), {local.ignored:,} ignored"
    if local.units.unit == "picture":
        yield (
            "The data name no lesions or patients: every picture counts. If some show the same "
            "lesion, bounds and coverages are too optimistic; name it in the column lesion, and "
            "the patient in the column group."
        )
    if local.units.unit == "group":
        yield (
            "The data name groups, such as patients, but no lesions: a group counts once for each "
            "class of its pictures, and figures are about such groups, not about lesions. For "
            "these, name the lesions in the column lesion."
        )


def _report_lines(report: SiteReport, out: Path) -> Iterator[str]:
    measured = f", measured on {report.measured:,} others" if report.measured else ""
    yield f"Fitted on {report.fitted:,} images{measured}.\n"
    if report.in_training is None:
        yield "note: the checkpoint does not record its training images; use none of them here"
    elif report.in_training:
        yield (
            f"warning: the checkpoint was trained on {report.in_training:,} of the pictures; the "
            "fit is too optimistic, and the policy is not established"
        )
    yield f"{report.tables}\n"
    if "thresholds only" in report.results:
        yield (
            "note: the held-out pictures decided that the heads are refitted, which makes the "
            "figures after it a little too good; the policy was fitted to pictures of the heads, "
            "and is not established"
        )
    yield f"{out}: revision {report.revision[:19]}"
    if report.policy is None:
        yield "No policy was written: it needs a lesion of a target class; name one with --target."
        return
    yield from _warning_lines(report.policy)
    measurements = [report.results[name].policy for name in ("before", "after") if report.measured]
    match [one.evidence.critical.sensitivity for one in measurements if one is not None]:
        case [before, after] if after < before:
            yield (
                "warning: on the held-out pictures the sensitivity for "
                f"{report.policy.target.critical.name} falls from {before:.3f} to {after:.3f}: do "
                "not serve this policy before somebody has examined why"
            )
            return
    yield f"eulerlora serve {out} --policy {out / 'policy.toml'}"
