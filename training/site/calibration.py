"""`eulerlora site fit`: a checkpoint and a policy with thresholds from a site's pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eulerlora.checkpoint.files import Checkpoint, check_free, load_checkpoint, revision_of
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.prediction.precision import decide_precision
from eulerlora.settings import PrecisionChoice, RuntimeSettings
from training.data.images import LabelledImage
from training.data.local_images import LocalImages
from training.evaluation.inference import SamplingOptions
from training.evaluation.prediction_sets import Lesions, data_sha256
from training.policy.evidence import MeasuredOn, evidence_table
from training.policy.file import PolicyRules, read_rules
from training.policy.fit import fit_policy
from training.policy.scores import check_classes, score_images
from training.site.fit import SiteFit, SiteImages, fit_site
from training.site.hold_out import HoldOut, split_groups
from training.site.measurement import Comparison, SitePolicy, measure_site
from training.site.output import FittedPolicy, write_site_checkpoint
from training.site.requirements import (
    OOD,
    URGENT,
    Needs,
    Requirement,
    bound_part,
    requirements,
    requirements_table,
)

ALL, FIT, HELD_OUT = "site pictures", "site pictures of the fit", "held-out site pictures"


@dataclass(frozen=True)
class SiteSettings:
    """What to fit.

    options: of the predictions that the policy applies to. policy: text of the policy to start
    from; policy_name: its name in errors. hold_out: share of the lesions to measure on; None fits
    on all. precision: of all predictions, which the new checkpoint records.
    """

    needs: Needs
    options: SamplingOptions
    policy: str
    policy_name: str
    hold_out: float | None = None
    precision: PrecisionChoice = "float32"


@dataclass(frozen=True)
class SiteReport:
    """What came of a fit.

    fitted, measured: numbers of pictures. results: by part, in words. revision: of the new
    checkpoint. has_policy: True if a policy was written.
    """

    fitted: int
    measured: int
    parts: Sequence[Requirement]
    results: Mapping[str, str]
    comparison: Comparison | None
    revision: str
    has_policy: bool

    @property
    def tables(self) -> str:
        """The parts and, if there is one, the comparison as Markdown."""
        tables = [requirements_table(self.parts, self.results)]
        if self.comparison is not None:
            tables.append(self.comparison.table)
        return "\n\n".join(tables)


def calibrate_site(
    source: Path, local: LocalImages, out: Path, settings: SiteSettings, device: torch.device
) -> SiteReport:
    """Fits the checkpoint in `source` to local pictures and writes the result to `out`.

    Raises CheckpointError if `out` is not empty, SettingsError for a damaged policy, and DataError
    for too few lesions for any part or a policy with other classes.
    """
    check_free(out)
    rules = read_rules(settings.policy, settings.policy_name)
    checkpoint = load_checkpoint(source)
    split = _split(local, settings.hold_out)
    site = site_images(checkpoint, local, split.fit, settings)
    decision = decide_precision(settings.precision, checkpoint, device)
    runtime = RuntimeSettings(precision=decision.precision)
    old = EulerLoRA(checkpoint, device, runtime, decision.reason)
    if site.parts[URGENT].met:
        check_classes(old, rules.malignant)
    fit = fit_site(checkpoint, site, device, runtime)
    fitted = _fitted_checkpoint(checkpoint, fit, _provenance(checkpoint, local, site, fit))
    new = EulerLoRA(fitted, device, runtime, decision.reason)
    policy = _fit_policy(new, site, rules, settings.needs.sensitivity)
    compared = _compare(old, new, split.measure, settings.options, policy, rules)
    file = None
    if policy is not None:
        evidence = evidence_table(
            new, settings.options, policy.fit, site.data, _measured_on(local, compared)
        )
        thresholds = (policy.fit.urgent, policy.fit.entropy_nats)
        file = FittedPolicy(settings.policy, *thresholds, evidence)
    write_site_checkpoint(source, out, fitted, file)
    return SiteReport(
        fitted=len(split.fit),
        measured=len(split.measure),
        parts=list(site.parts.values()),
        results={**fit.results, **_policy_results(policy, settings.needs)},
        comparison=compared,
        revision=new.revision,
        has_policy=file is not None,
    )


def _split(local: LocalImages, hold_out: float | None) -> HoldOut:
    return HoldOut(local.images, ()) if hold_out is None else split_groups(local.images, hold_out)


def site_images(
    checkpoint: Checkpoint,
    local: LocalImages,
    images: Sequence[LabelledImage],
    settings: SiteSettings,
) -> SiteImages:
    """Returns the pictures of a fit with their requirements. Raises DataError if none is met."""
    names = [label.name for label in checkpoint.config.classes]
    lesions = dict(zip(names, Lesions.of(images).counts(len(names)), strict=True))
    parts = requirements(lesions, local.unit, settings.needs)
    by_part = {part.part: part for part in parts}
    if not any(part.met for part in parts):
        ood, urgent = by_part[OOD], by_part[URGENT]
        raise DataError(
            f"{local.name}: expected at least {ood.needed} {ood.kind}, or {urgent.needed} "
            f"{urgent.kind}; got {ood.available} and {urgent.available}"
        )
    data = f"{local.name}, {ALL if settings.hold_out is None else FIT}"
    return SiteImages(images, data, settings.needs, by_part, settings.options)


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


def _fit_policy(
    model: EulerLoRA, site: SiteImages, rules: PolicyRules, sensitivity: float
) -> SitePolicy | None:
    """Returns the fitted policy; None without a lesion of melanoma."""
    if not site.parts[URGENT].met:
        return None
    scored = score_images(model, site.images, site.options, rules.malignant, "policy")
    return SitePolicy(rules.malignant, fit_policy(scored, sensitivity))


def _policy_results(policy: SitePolicy | None, needs: Needs) -> dict[str, str]:
    if policy is None:
        return {}
    melanoma = policy.fit.melanoma
    found = f"{melanoma.hits} of {melanoma.lesions} found"
    return {
        URGENT: f"{policy.fit.urgent:g}: {found}, lower bound {melanoma.lower_bound:.3f}",
        bound_part(needs.sensitivity): "established" if melanoma.established else "not established",
    }


def _compare(
    old: EulerLoRA,
    new: EulerLoRA,
    images: Sequence[LabelledImage],
    options: SamplingOptions,
    policy: SitePolicy | None,
    rules: PolicyRules,
) -> Comparison | None:
    """Returns the results on held-out images; None without such images."""
    if not images:
        return None
    before = policy and replace(
        policy,
        fit=replace(policy.fit, urgent=rules.urgent, entropy_nats=rules.entropy_nats),
    )
    return Comparison(
        measure_site(old, images, options, before), measure_site(new, images, options, policy)
    )


def _measured_on(local: LocalImages, compared: Comparison | None) -> Sequence[MeasuredOn]:
    measured = None if compared is None else compared.after.policy
    return () if measured is None else (MeasuredOn(f"{local.name}, {HELD_OUT}", measured),)
