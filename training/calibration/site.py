"""`eulerlora site fit`: a checkpoint and a policy with thresholds from a site's own pictures.

A part of the pictures may be held out, to compare the checkpoint before and after on new lesions.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import (
    ADAPTERS_FILE,
    BACKBONE_FILE,
    CARD_FILE,
    TRAINING_IMAGES_FILE,
    Checkpoint,
    check_free,
    load_checkpoint,
    new_folder,
    revision_of,
    write_card,
    write_config,
    write_feature_statistics,
    write_known_answer,
)
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.prediction.precision import decide_precision
from eulerlora.scores.ood_scores import ScoreName, ood_scores
from eulerlora.settings import PrecisionChoice, RuntimeSettings
from eulerlora_client.output_files import storage_errors
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.results import not_established
from training.calibration.policy import (
    PolicyFile,
    PolicyFit,
    check_classes,
    fit_policy,
    score_images,
    score_outputs,
)
from training.calibration.policy_measurement import (
    PolicyMeasurement,
    evidence_of,
    measure_policy,
)
from training.calibration.report import (
    OOD,
    URGENT,
    FittedPart,
    Needs,
    policy_parts,
    report_table,
    site_parts,
)
from training.calibration.site_fit import SiteFit, SiteImages, fit_site, group_indices
from training.data.digests import images_in_training
from training.data.images import LabelledImage
from training.data.local_images import LocalImages
from training.data.splits import MIN_FOR_SPLIT, SPLIT_SEED, Group, stratified_split, whole_groups
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import Proportion, proportion
from training.evaluation.prediction_sets import Lesions, data_sha256, set_coverages
from training.evaluation.report_schema import SetCoverage
from training.reporting.charts import RELIABILITY
from training.reporting.model_card import site_sections
from training.reporting.tables import table

POLICY = "policy.toml"
COPIED = (ADAPTERS_FILE, BACKBONE_FILE, RELIABILITY, TRAINING_IMAGES_FILE)
SECTION = re.compile(r"^## ", re.MULTILINE)
ALL, FIT, HELD_OUT = "site pictures", "site pictures of the fit", "held-out site pictures"
NOT_MEASURED = "n/a"


@dataclass(frozen=True)
class SiteSettings:
    """What to fit.

    options: of the predictions that the policy applies to. policy: to start from. hold_out: share
    of the lesions to measure on; None fits on all. precision: of all predictions, which the new
    checkpoint records.
    """

    needs: Needs
    options: SamplingOptions
    policy: PolicyFile
    hold_out: float | None = None
    precision: PrecisionChoice = "float32"


@dataclass(frozen=True)
class SiteMeasurement:
    """Results on labelled pictures.

    kept: pictures that an OOD score does not flag, by calibrated score. policy: None without a
    policy, critical pictures, or pictures outside the target. sets: for each coverage.
    """

    kept: Mapping[ScoreName, Proportion]
    policy: PolicyMeasurement | None
    sets: Sequence[SetCoverage]


@dataclass(frozen=True)
class Comparison:
    """Results on pictures without a part in the fit, of the old and the new checkpoint."""

    before: SiteMeasurement
    after: SiteMeasurement

    @property
    def table(self) -> str:
        """The results as a Markdown table."""
        columns = [dict(_rows(self.before)), dict(_rows(self.after))]
        names = dict.fromkeys(name for column in columns for name in column)
        rows = [[name, *(column.get(name, NOT_MEASURED) for column in columns)] for name in names]
        return table(["held-out pictures", "before", "after"], rows)


@dataclass(frozen=True)
class SiteReport:
    """What came of a fit.

    fitted, measured: numbers of pictures. in_training: those of both that the checkpoint was
    trained on; None if it does not record its training images. parts: with results. revision: of
    the new checkpoint. notice: what the policy did not establish; None if it did, and without a
    policy. has_policy: True if a policy was written.
    """

    fitted: int
    measured: int
    in_training: int | None
    parts: Sequence[FittedPart]
    comparison: Comparison | None
    revision: str
    notice: str | None
    has_policy: bool

    @property
    def tables(self) -> str:
        """The parts and, if there is one, the comparison as Markdown."""
        tables = [report_table(self.parts)]
        if self.comparison is not None:
            tables.append(self.comparison.table)
        return "\n\n".join(tables)


@dataclass(frozen=True)
class HoldOut:
    """Two parts of the images without a common group: one to fit and one to measure."""

    fit: Sequence[LabelledImage]
    measure: Sequence[LabelledImage]


def split_groups(
    images: Sequence[LabelledImage], measured: float, seed: int = SPLIT_SEED
) -> HoldOut:
    """Returns the images in two parts, stratified by class; the same parts for the same seed.

    measured: share of the groups in the second part, 0 to 1. Groups of a class with fewer than two
    stay in the first. Raises DataError if there are too few groups.
    """
    groups = whole_groups(sorted(images, key=lambda image: image.cluster or image.name))
    sizes = Counter(group.label for group in groups)
    alone = [group for group in groups if sizes[group.label] < MIN_FOR_SPLIT]
    several = [group for group in groups if sizes[group.label] >= MIN_FOR_SPLIT]
    fit, measure = stratified_split(several, measured, seed)
    return HoldOut(_images([*fit, *alone]), _images(measure))


def _images(groups: Sequence[Group[LabelledImage]]) -> list[LabelledImage]:
    return sorted((image for group in groups for image in group.items), key=lambda i: i.name)


def calibrate_site(
    source: Path, local: LocalImages, out: Path, settings: SiteSettings, device: torch.device
) -> SiteReport:
    """Fits the checkpoint in `source` to local pictures and writes the result to `out`.

    Raises CheckpointError if `out` is not empty, and DataError for too few lesions for any part or
    a policy with other classes.
    """
    check_free(out)
    checkpoint, policy = load_checkpoint(source), settings.policy.policy
    seen = images_in_training(source, local.images)
    seen_names = {image.name for image in seen or ()}
    split = HoldOut(local.images, ())
    if settings.hold_out is not None:
        split = split_groups(local.images, settings.hold_out)
    site = site_images(checkpoint, local, split.fit, settings)
    decision = decide_precision(settings.precision, checkpoint, device)
    runtime = RuntimeSettings(precision=decision.precision)
    old = EulerLoRA(checkpoint, device, runtime, decision.reason)
    with_policy = site.parts[URGENT].met
    if with_policy:
        check_classes(old, policy.target)
    fit = fit_site(checkpoint, site, device, runtime)
    facts = _provenance(checkpoint, local, site, fit)
    if seen is not None:
        facts["in_training"] = len(seen)
    fitted = _fitted_checkpoint(checkpoint, fit, facts)
    new = EulerLoRA(fitted, device, runtime, decision.reason)
    policy_fit = _fit_policy(new, site, policy) if with_policy else None
    new_policy = None if policy_fit is None else settings.policy.fitted(policy_fit)
    compared = None
    if split.measure:
        name, before = f"{local.name}, {HELD_OUT}", policy if with_policy else None
        compared = Comparison(
            measure_site(old, split.measure, site.options, before, name),
            measure_site(new, split.measure, site.options, new_policy, name),
        )
    results = dict(fit.results)
    if policy_fit is not None and new_policy is not None:
        measured = None if compared is None else compared.after.policy
        evidence = evidence_of(
            new,
            site.options,
            policy_fit,
            site.data,
            () if measured is None else (measured,),
            sum(image.name in seen_names for image in split.fit),
        )
        new_policy = new_policy.model_copy(update={"evidence": evidence})
        results |= {part.part: part.result for part in policy_parts(policy_fit, policy.target)}
    write_site_checkpoint(source, out, fitted, settings.policy, new_policy)
    return SiteReport(
        fitted=len(split.fit),
        measured=len(split.measure),
        in_training=None if seen is None else len(seen),
        parts=[replace(part, result=results.get(name, "")) for name, part in site.parts.items()],
        comparison=compared,
        revision=new.revision,
        notice=None if new_policy is None else not_established(new_policy),
        has_policy=new_policy is not None,
    )


def site_images(
    checkpoint: Checkpoint,
    local: LocalImages,
    images: Sequence[LabelledImage],
    settings: SiteSettings,
) -> SiteImages:
    """Returns the pictures of a fit with what they suffice for. Raises DataError for nothing."""
    names = [label.name for label in checkpoint.config.classes]
    target = settings.policy.policy.target
    lesions = dict(zip(names, Lesions.of(images).counts(len(names)), strict=True))
    parts = {part.part: part for part in site_parts(lesions, local.unit, settings.needs, target)}
    if not any(part.met for part in parts.values()):
        ood, urgent = parts[OOD], parts[URGENT]
        raise DataError(
            f"{local.name}: expected at least {ood.needed} {ood.unit}, or {urgent.needed} "
            f"{urgent.unit}; got {ood.available} and {urgent.available}"
        )
    data = f"{local.name}, {ALL if settings.hold_out is None else FIT}"
    return SiteImages(images, data, settings.needs, parts, settings.options)


def _provenance(
    checkpoint: Checkpoint, local: LocalImages, site: SiteImages, fit: SiteFit
) -> dict[str, Any]:
    """Returns the facts of the fit; no date, so that a second fit has the same revision."""
    names = [label.name for label in checkpoint.config.classes]
    counts = zip(names, Lesions.of(site.images).counts(len(names)), strict=True)
    return {
        "source": checkpoint.revision,
        "data": site.data,
        "data_sha256": data_sha256(site.images, names),
        "images": len(site.images),
        "unit": local.unit,
        "lesions": {name: count for name, count in counts if count},
        "results": dict(fit.results),
    }


def _fitted_checkpoint(
    checkpoint: Checkpoint, fit: SiteFit, provenance: Mapping[str, Any]
) -> Checkpoint:
    facts = {**fit.config.provenance, "site": provenance}
    config = fit.config.model_copy(update={"provenance": facts})
    return replace(
        checkpoint,
        config=config,
        revision=revision_of(config),
        feature_distance=fit.distance,
    )


def _fit_policy(model: EulerLoRA, site: SiteImages, policy: Policy) -> PolicyFit:
    scored = score_images(model, site.images, site.options, policy.target, "policy")
    return fit_policy(scored, site.needs.sensitivity)


def measure_site(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    policy: Policy | None,
    data: str,
) -> SiteMeasurement:
    """Returns the results of a model on at least one picture.

    options: of its predictions. data: name of the pictures.
    """
    (outputs,) = predict_all(model, images, [options], "measure")
    thresholds = model.config.threshold(options.mode, options.samples)
    flags = ood_scores(outputs.scores(model.feature_distance), thresholds)
    groups = group_indices(images)
    kept = {
        name: share
        for name, score in flags.items()
        if score.flagged is not None
        and (share := proportion((~score.flagged).numpy(), groups)) is not None
    }
    measured = None
    if policy is not None:
        scored = score_outputs(model, outputs, images, options, policy.target)
        if scored.critical.any() and not scored.target.all():
            measured = measure_policy(scored, policy, data)
    sampler = model.config.sampler
    sets = set_coverages(model, options, sampler, outputs.probabilities(), images)
    return SiteMeasurement(kept, measured, sets)


def _rows(site: SiteMeasurement) -> Iterator[tuple[str, str]]:
    if site.policy is not None:
        policy = site.policy
        critical = policy.evidence.critical
        yield (
            f"sensitivity, {critical.lesions} critical lesions",
            f"{critical.sensitivity:.3f} [{critical.sensitivity_low:.3f}, "
            f"{critical.sensitivity_high:.3f}]",
        )
        yield "critical lesions urgent", str(critical.urgent)
        yield "critical lesions unfamiliar", str(critical.unfamiliar)
        others = f"{policy.other_images} images outside the target"
        yield f"specificity, {others}", f"{policy.specificity:.3f}"
        yield "urgent, of all images", f"{policy.urgent:.3f}"
        yield "unfamiliar, of all images", f"{policy.unfamiliar:.3f}"
        yield "referral rate", f"{policy.evidence.referral_rate:.3f}"
    for score, share in site.kept.items():
        yield f"kept by {score}", _interval(share)
    for sets in site.sets:
        yield f"classes in a set of {sets.coverage:g}", f"{sets.mean_size:.2f}"
        for name, covered in sets.classes.items():
            yield f"coverage of {sets.coverage:g} for {name}", _interval(covered.lesions)


def _interval(share: Proportion) -> str:
    return f"{share.share:.3f} [{share.low:.3f}, {share.high:.3f}]"


def write_site_checkpoint(
    source: Path, folder: Path, checkpoint: Checkpoint, file: PolicyFile, policy: Policy | None
) -> None:
    """Writes a checkpoint with the weights of that in `source`, and its policy.

    checkpoint: with the new config. policy: fitted to `file`; None writes none. The
    known answer is computed from the written files. Raises CheckpointError if `folder` is not empty
    and StorageError for a full disk.
    """
    check_free(folder)
    config = checkpoint.config
    with storage_errors(folder), new_folder(folder) as partial:
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        if checkpoint.feature_distance is not None:
            write_feature_statistics(partial, checkpoint.feature_distance.statistics)
        write_card(partial, site_card((source / CARD_FILE).read_text(encoding="utf-8"), config))
        write_config(partial, config)
        write_known_answer(partial, load_checkpoint(partial).network, config)
        if policy is not None:
            file.write(partial / POLICY, policy)


def site_card(card: str, config: CheckpointConfig) -> str:
    """Returns a model card with the section on local pictures as its first one.

    card: of the checkpoint with the same weights; it may have such a section already. config: of
    the new checkpoint.
    """
    head, *sections = SECTION.split(card)
    new = [f"{title}\n\n{text}\n\n" for title, text in site_sections(config)]
    titles = tuple(f"{title}\n" for title, _ in site_sections(config))
    kept = [section for section in sections if not section.startswith(titles)]
    return "## ".join([head.rstrip("\n") + "\n\n", *new, *kept])
