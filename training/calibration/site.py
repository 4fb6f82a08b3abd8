"""`eulerlora site fit`: a checkpoint and a policy with thresholds from a site's own pictures.

A part of the pictures may be held out, to compare the checkpoint before and after on new lesions.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from eulerlora.model import EulerLoRA
from eulerlora.prediction.precision import decide_precision
from eulerlora.settings import RuntimeSettings
from eulerlora_client.errors import DataError
from eulerlora_client.output_files import storage_errors
from eulerlora_client.policy.policy import Policy
from training.calibration.policy import (
    PolicyFile,
    check_classes,
    fit_policy,
    policy_inputs,
    score_images,
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
    policy_parts,
    report_table,
    site_parts,
)
from training.calibration.site_fit import Parts, SiteSettings, fit_site
from training.calibration.thresholds import data_sha256
from training.data.digests import images_in_training
from training.data.images import LabelledImage
from training.data.local_images import LocalImages
from training.data.splits import split_off
from training.evaluation.evaluated_sets import SetPredictions
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import cluster_indices, proportion
from training.evaluation.prediction_sets import Lesions, set_coverages
from training.reporting.charts import RELIABILITY
from training.reporting.model_card import site_sections
from training.reporting.tables import table

POLICY = "policy.toml"
COPIED = (ADAPTERS_FILE, BACKBONE_FILE, RELIABILITY, TRAINING_IMAGES_FILE)
SECTION = re.compile(r"^## ", re.MULTILINE)
ALL, FIT, HELD_OUT = "site pictures", "site pictures of the fit", "held-out site pictures"


@dataclass(frozen=True)
class SiteMeasurement:
    """Results on labelled pictures that had no part in the fit.

    results: in words, by name. policy: None without a policy, critical pictures, or pictures
    outside the target.
    """

    results: Mapping[str, str]
    policy: PolicyMeasurement | None


@dataclass(frozen=True)
class SiteReport:
    """What came of a fit.

    fitted, measured: numbers of pictures. in_training: those of both that the checkpoint was
    trained on; None if it does not record its training images. parts: with results. before, after:
    results on the measured pictures of the old and the new checkpoint; None without such pictures.
    revision: of the new checkpoint. policy: that was written, if any.
    """

    fitted: int
    measured: int
    in_training: int | None
    parts: Sequence[FittedPart]
    before: SiteMeasurement | None
    after: SiteMeasurement | None
    revision: str
    policy: Policy | None

    @property
    def tables(self) -> str:
        """The parts and, if there is one, the comparison as Markdown."""
        tables = [report_table(self.parts)]
        if self.before is not None and self.after is not None:
            columns = [self.before.results, self.after.results]
            names = dict.fromkeys(name for column in columns for name in column)
            rows = [[name, *(column.get(name, "n/a") for column in columns)] for name in names]
            tables.append(table(["held-out pictures", "before", "after"], rows))
        return "\n\n".join(tables)


def calibrate_site(
    source: Path, local: LocalImages, out: Path, settings: SiteSettings, device: torch.device
) -> SiteReport:
    """Fits the checkpoint in `source` to local pictures and writes the result to `out`.

    Raises CheckpointError if `out` is not empty, and DataError for too few lesions for any part or
    a policy with other classes.
    """
    check_free(out)
    checkpoint, policy, options = load_checkpoint(source), settings.policy.policy, settings.options
    images, held_out = split_images(local.images, settings.hold_out)
    names = [label.name for label in checkpoint.config.classes]
    lesions = dict(zip(names, Lesions.of(images).counts(len(names)), strict=True))
    parts = _parts(local, lesions, settings)
    data = f"{local.name}, {ALL if settings.hold_out is None else FIT}"
    seen = images_in_training(source, local.images)
    decision = decide_precision(settings.precision, checkpoint, device)
    runtime = RuntimeSettings(precision=decision.precision)
    old = EulerLoRA(checkpoint, device, runtime, decision.reason)
    with_policy = parts[URGENT].met
    if with_policy:
        check_classes(old, policy.target)
    fit = fit_site(checkpoint, images, data, settings, parts, device, runtime)
    facts = {  # without a date, so that a second fit has the same revision
        "source": checkpoint.revision,
        "data": data,
        "data_sha256": data_sha256(images, names),
        "images": len(images),
        "unit": local.unit,
        "lesions": {name: count for name, count in lesions.items() if count},
        "results": dict(fit.results),
        **({} if seen is None else {"in_training": len(seen)}),
    }
    config = fit.config.model_copy(update={"provenance": fit.config.provenance | {"site": facts}})
    revision, distance = revision_of(config), fit.distance
    fitted = replace(checkpoint, config=config, revision=revision, feature_distance=distance)
    new = EulerLoRA(fitted, device, runtime, decision.reason)
    results, policy_fit, new_policy = dict(fit.results), None, None
    if with_policy:
        scored = score_images(new, images, options, policy.target, "policy")
        policy_fit = fit_policy(scored, settings.sensitivity)
        new_policy = settings.policy.fitted(policy_fit)
        results |= {part.part: part.result for part in policy_parts(policy_fit, policy.target)}
    before = after = None
    if held_out:
        name = f"{local.name}, {HELD_OUT}"
        before = measure_site(old, held_out, options, policy if with_policy else None, name)
        after = measure_site(new, held_out, options, new_policy, name)
    if policy_fit is not None and new_policy is not None:
        measured = () if after is None or after.policy is None else (after.policy,)
        known = {image.name for image in images} & {image.name for image in seen or ()}
        evidence = evidence_of(new, options, policy_fit, data, measured, len(known))
        new_policy = new_policy.model_copy(update={"evidence": evidence})
    write_site_checkpoint(source, out, fitted, settings.policy, new_policy)
    return SiteReport(
        fitted=len(images),
        measured=len(held_out),
        in_training=None if seen is None else len(seen),
        parts=[replace(part, result=results.get(name, "")) for name, part in parts.items()],
        before=before,
        after=after,
        revision=new.revision,
        policy=new_policy,
    )


def _parts(local: LocalImages, lesions: Mapping[str, int], settings: SiteSettings) -> Parts:
    """Returns what the lesions of the classes suffice for. Raises DataError for nothing."""
    sensitivity, coverage, target = (
        settings.sensitivity, settings.coverage, settings.policy.policy.target
    )  # fmt: skip
    listed = site_parts(lesions, local.unit, sensitivity, coverage, target)
    parts = {part.part: part for part in listed}
    if not any(part.met for part in parts.values()):
        ood, urgent = parts[OOD], parts[URGENT]
        raise DataError(
            f"{local.name}: expected at least {ood.needed} {ood.unit}, or {urgent.needed} "
            f"{urgent.unit}; got {ood.available} and {urgent.available}"
        )
    return parts


def split_images(
    images: Sequence[LabelledImage], held_out: float | None
) -> tuple[Sequence[LabelledImage], Sequence[LabelledImage]]:
    """Returns the images to fit to and to measure on, sorted by name, without a common group.

    held_out: share of the groups to measure on, 0 to 1, as `split_off`; None for none.
    """
    if held_out is None:
        return images, ()
    ordered = sorted(images, key=lambda image: image.cluster or image.name)
    fitted, measured = split_off(ordered, held_out)
    return sorted(fitted, key=_name), sorted(measured, key=_name)


def _name(image: LabelledImage) -> str:
    return image.name


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
    predictions = SetPredictions.of(outputs, model.feature_distance, thresholds)
    measured, results = None, dict[str, str]()
    if policy is not None:
        inputs = policy_inputs(model, predictions, images, policy.target)
        if inputs.critical.any() and not inputs.target.all():
            measured = measure_policy(inputs, policy, data)
            results |= _policy_results(measured)
    clusters = cluster_indices([image.cluster or image.name for image in images])
    for score, flags in predictions.flags.items():
        kept = proportion(~flags, clusters)
        assert kept is not None  # there is a picture
        results[f"kept by {score}"] = kept.text
    probabilities = predictions.uncertainty.probabilities
    for sets in set_coverages(model, options, model.config.sampler, probabilities, images):
        results[f"classes in a set of {sets.coverage:g}"] = f"{sets.mean_size:.2f}"
        for name, covered in sets.classes.items():
            results[f"coverage of {sets.coverage:g} for {name}"] = covered.lesions.text
    return SiteMeasurement(results, measured)


def _policy_results(policy: PolicyMeasurement) -> dict[str, str]:
    critical = policy.evidence.critical
    low, high, others = critical.sensitivity_low, critical.sensitivity_high, policy.other_images
    return {
        f"sensitivity, {critical.lesions} critical lesions": (
            f"{critical.sensitivity:.3f} [{low:.3f}, {high:.3f}]"
        ),
        "critical lesions urgent": str(critical.urgent),
        "critical lesions unfamiliar": str(critical.unfamiliar),
        f"specificity, {others} images outside the target": f"{policy.specificity:.3f}",
        "urgent, of all images": f"{policy.urgent:.3f}",
        "unfamiliar, of all images": f"{policy.unfamiliar:.3f}",
        "referral rate": f"{policy.evidence.referral_rate:.3f}",
    }


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
