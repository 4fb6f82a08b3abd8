"""`eulerlora site fit`: a checkpoint and a policy fitted to a site's own pictures.

Fits temperature, feature means, OOD thresholds, prediction sets and policy. What a site has too few
lesions for stays as it was, but prediction sets of another temperature or other heads are removed.
A part of the pictures may be held out, to compare the checkpoint before and after on new lesions.
If these show that refitted heads are better, the checkpoint gets them; all else is then fitted to
cross-fitted outputs, those of each lesion by heads that were fitted without it.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import (
    CALIBRATION_IMAGES,
    CONFIG_FILE,
    Checkpoint,
    check_new_checkpoint,
    copy_checkpoint,
    load_checkpoint,
    read_training_images,
    revision_of,
    stored_card,
)
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.nn.method import AdapterHeads
from eulerlora.sampling.adaptive import MIN_IMAGES
from eulerlora.scores.ood_scores import FeatureDistance
from eulerlora.scores.prediction_sets import min_units
from eulerlora_clinic.fitting.far import FarLesions, relaxed
from eulerlora_clinic.fitting.feature_means import fit_offset
from eulerlora_clinic.fitting.heads import HeadComparison, refit_heads, with_changed_heads
from eulerlora_clinic.fitting.parts import (
    FAR,
    ROUTINE,
    policy_parts,
    results_table,
    target_parts,
)
from eulerlora_clinic.fitting.policy import (
    PolicyFile,
    PolicyFit,
    PolicyMeasurement,
    SensitivityRule,
    check_classes,
    evidence_of,
    fit_policy,
    measure_policy,
    policy_inputs,
)
from eulerlora_clinic.fitting.site_card import site_card
from eulerlora_clinic.policy.policy import FarEvidence, Policy, UnfamiliarRules
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import new_folder
from eulerlora_contract.sampling import MODES, Mode, Options, applying
from training.calibration.parts import FEATURES, OOD, FittedPart, parts_table, sets_part
from training.calibration.thresholds import (
    KEPT_SHARE,
    CalibrationOutputs,
    CoverageSettings,
    data_sha256,
    image_nll,
    with_prediction_sets,
    with_thresholds,
)
from training.data.copies import image_digests, images_in_training
from training.data.images import LabelledImage
from training.data.local_images import LocalImages
from training.data.splits import split_off
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.intervals import proportion
from training.evaluation.prediction_sets import set_coverages
from training.recipe.schema import CALIBRATED_SAMPLES

_HEADS, _TEMPERATURE = "heads", "temperature"

MIN_HEADS = 50
"""Lesions to refit heads to. With 25 simulated ones (HAM10000, a colour cast) the AUROC fell."""

_MIN_TEMPERATURE = 10
"""Lesions of each class for a site's temperature, two for each fold of its cross-validation.

Pictures without some of the classes would give a low temperature, because all probability of these
classes looks wrong. `calibrate` needs one for each fold: its classes are as frequent as in
training.
"""

_MIN_FEATURES = 50
"""Lesions for feature means: the mean of n adds 1/n to the expected squared distance, here 2%."""

_MIN_OOD = min_units(KEPT_SHARE)
"""Lesions with which a site gets OOD thresholds of its own, 19: each keeps 95% of new lesions on
average. With fewer, the thresholds of the checkpoint stay.

A training and `calibrate` have no others to keep, and fit thresholds to any number of lesions. They
call fewer than `tolerance_sample_size(KEPT_SHARE)`, 59, too few: the confidence that a threshold
keeps 95% is then below 95%. Results state the confidence in both cases.
"""


@dataclass(frozen=True)
class SiteSettings:
    """What to fit.

    Attributes:
        sensitivity: Required of the routine threshold.
        predictive_value: Required of the urgent threshold.
        coverage: Of the prediction sets.
        options: Of the predictions that the policy applies to, whose NLL the temperature lowers.
            All predictions are in their precision, which the new checkpoint records.
        policy: To start from.
        hold_out: Share of the lesions to measure on; None fits on all.
    """

    sensitivity: float
    predictive_value: float
    coverage: CoverageSettings
    options: Options
    policy: PolicyFile
    hold_out: float | None = None


@dataclass(frozen=True)
class _SiteFit:
    """A checkpoint with what was fitted so far.

    Attributes:
        heads: None for those of the source.
        outputs: Of the pictures, at the config's temperature and with features relative to the
            distance's means, of which those of the same group are no part.
        parts: By name, with the lesions that they need, and the results of those that were fitted.
        policy_fit: None before the fit, and without critical lesions; with too few of them, its
            routine threshold is that of the policy.
        unfamiliar: Of the policy, with `policy_fit`; None if it had none for this checkpoint.
        far: About `unfamiliar`.
    """

    config: CheckpointConfig
    distance: FeatureDistance | None
    outputs: CalibrationOutputs
    parts: Mapping[str, FittedPart]
    heads: AdapterHeads | None = None
    policy_fit: PolicyFit | None = None
    unfamiliar: UnfamiliarRules | None = None
    far: tuple[FarEvidence, ...] = ()

    def with_result(self, part: str, result: str) -> "_SiteFit":
        return replace(self, parts={**self.parts, part: replace(self.parts[part], result=result)})


def _fit_site(fit: _SiteFit, settings: SiteSettings) -> _SiteFit:
    """Fits the parts that have enough lesions to a fit with outputs at temperature 1."""
    fit = _with_temperature(fit, settings.options)
    fit = _with_feature_means(fit)
    if fit.parts[OOD].met:
        # Margins are those of the outputs, not of the thresholds: the checkpoint's stay valid.
        margins = fit.config.margins if len(fit.outputs.images) < MIN_IMAGES else None
        config = fit.config.model_copy(update={"thresholds": (), "margins": margins})
        config = with_thresholds(config, fit.outputs, fit.distance, CALIBRATED_SAMPLES)
        tolerance = config.thresholds[0].tolerance
        assert tolerance is not None
        auto = "" if config.margins else f"; no `samples=auto`, which needs {MIN_IMAGES} images"
        fit = replace(fit, config=config).with_result(OOD, f"keep {tolerance.summary}{auto}")
    fit = _with_prediction_sets(fit, settings.coverage)
    if not fit.parts[ROUTINE].available:
        return fit
    outputs, target = fit.outputs, settings.policy.policy.target
    thresholds = fit.config.threshold(settings.options)
    summary = Predictions.of(outputs.trajectories(settings.options), fit.distance, thresholds)
    scored = policy_inputs(fit.config.class_names, summary, outputs.images, target)
    required = SensitivityRule(settings.sensitivity), settings.predictive_value
    (policy_fit,) = fit_policy([scored], target, *required)
    fit = replace(fit, policy_fit=policy_fit)
    if fit.unfamiliar is None:
        return fit
    return _with_far(
        fit, fit.unfamiliar, FarLesions.of(outputs.data, "fit", scored, policy_fit.target.urgent)
    )


def _with_far(fit: _SiteFit, rules: UnfamiliarRules, lesions: FarLesions) -> _SiteFit:
    """The fit with rules for far images that concern almost none of these target lesions."""
    rules = relaxed(rules, [[lesions]])
    evidence = lesions.evidence(rules)
    result = f"{rules.far:g}: {evidence.far} of {evidence.lesions} {evidence.unit}s are that far"
    return replace(fit, unfamiliar=rules, far=(evidence,)).with_result(FAR, result)


def _with_refitted_heads(
    fit: _SiteFit, heads: AdapterHeads, settings: SiteSettings
) -> _SiteFit | str:
    """The fit with refitted heads, or why there is none.

    The outputs of each picture are then those of heads that were fitted without its lesion. What
    belongs to the outputs of the old heads is removed.

    Args:
        fit: With outputs at temperature 1.
        heads: That gave them.
        settings: Of the fit.
    """
    if settings.hold_out is None:
        return "not refitted: only pictures of --hold-out can show that it helps"
    if type(heads) is not AdapterHeads:
        return "not refitted: the method has heads of its own"
    outputs, of_modes = fit.outputs, _of_modes(fit.config, settings.options)
    refitted = refit_heads(
        [outputs.trajectories(options) for options in of_modes.values()],
        heads,
        outputs.labels,
        outputs.units,
        fit.config.temperatures[settings.options.mode],
    )
    if refitted is None:
        return f"not refitted: no change lowers the NLL of {outputs.units.unit}s outside of its fit"
    det, stoch = (
        with_changed_heads(of_mode, heads, refitted.cross_fitted)
        for of_mode in (outputs.det, outputs.stoch)
    )
    new = copy.deepcopy(heads)
    refitted.change.apply(new)
    stale = {"thresholds": (), "margins": None, "prediction_sets": (), "bfloat16": ()}
    return replace(
        fit,
        config=fit.config.model_copy(update=stale),
        outputs=replace(outputs, det=det, stoch=stoch),
        heads=new,
    )


def _of_modes(config: CheckpointConfig, options: Options) -> Mapping[Mode, Options]:
    """Options by mode, first the given ones; those of the other mode are the defaults."""
    others = (mode for mode in MODES if mode != options.mode)
    return {options.mode: options} | {
        mode: config.options(mode, precision=options.precision) for mode in others
    }


def _with_temperature(fit: _SiteFit, options: Options) -> _SiteFit:
    """The fit at its new temperature; the outputs of the given one are at temperature 1.

    A checkpoint that samples views has a temperature for each mode.
    """
    config, temperatures = fit.config, dict(fit.config.temperatures)
    if fit.parts[_TEMPERATURE].met:
        of_modes = _of_modes(config, options) if config.views > 1 else {options.mode: options}
        fits = {
            mode: fit.outputs.temperature(of_mode, temperatures[mode])
            for mode, of_mode in of_modes.items()
        }
        temperatures = {mode: fits.get(mode, fits[options.mode]).temperature for mode in MODES}
        fit = fit.with_result(_TEMPERATURE, "; ".join(scaling.summary for scaling in fits.values()))
    det, stoch = temperatures["det"], temperatures["stoch"]
    update: dict[str, object] = {
        "temperature": det,
        "stoch_temperature": None if stoch == det else stoch,
    }
    if temperatures != config.temperatures:
        update |= {"prediction_sets": (), "margins": None}
    config = config.model_copy(update=update)
    return replace(fit, config=config, outputs=fit.outputs.at(temperatures))


def _with_feature_means(fit: _SiteFit) -> _SiteFit:
    described, distance = fit.config.features, fit.distance
    if not fit.parts[FEATURES].met:
        return fit
    if described is None or distance is None or described.components != len(fit.config.classes):
        return fit.with_result(FEATURES, "not fitted: the checkpoint has no mean for each class")
    features = fit.outputs.det.features.mean(dim=(1, 2))
    offset = fit_offset(distance, features, fit.outputs.labels, fit.outputs.units)
    fit = fit.with_result(FEATURES, offset.summary)
    if not offset.helps:
        return fit
    means = distance.statistics.means + offset.offset
    statistics = replace(distance.statistics, means=means)
    changes = {
        "sha256": tensors_sha256(statistics.tensors),
        "data": f"{described.data}, means moved to {fit.outputs.data}",
    }
    config = fit.config.model_copy(update={"features": described.model_copy(update=changes)})
    by_picture = (offset.by_picture - offset.offset)[:, None, None]  # relative to the moved means
    det, stoch = (
        replace(outputs, features=outputs.features - by_picture)
        for outputs in (fit.outputs.det, fit.outputs.stoch)
    )
    outputs = replace(fit.outputs, det=det, stoch=stoch)
    return replace(fit, config=config, distance=FeatureDistance(statistics), outputs=outputs)


def _with_prediction_sets(fit: _SiteFit, coverage: CoverageSettings) -> _SiteFit:
    met = tuple(stated for stated in coverage.coverages if fit.parts[sets_part(stated)].met)
    kept = tuple(sets for sets in fit.config.prediction_sets if sets.coverage not in met)
    config = fit.config.model_copy(update={"prediction_sets": kept})
    config = with_prediction_sets(
        config, fit.outputs, CALIBRATED_SAMPLES, replace(coverage, coverages=met)
    )
    fit = replace(fit, config=config)
    for stated in met:
        confidences = [
            confidence
            for sets in config.prediction_sets
            if sets.coverage == stated
            for confidence in sets.confidences
        ]
        result = f"fitted; for every class with a confidence of {min(confidences):.0%} or more"
        fit = fit.with_result(sets_part(stated), result)
    return fit


@dataclass(frozen=True)
class SiteMeasurement:
    """Results on labelled pictures that had no part in the fit.

    Attributes:
        results: In words, by name.
        policy: None without a policy, critical pictures, or pictures outside the target.
        log_probabilities: (n, trajectories, classes).
    """

    results: Mapping[str, str]
    policy: PolicyMeasurement | None
    log_probabilities: Tensor


@dataclass(frozen=True)
class SiteReport:
    """What came of a fit.

    Attributes:
        fitted: Number of pictures of the fit.
        measured: Number of other pictures, on which both checkpoints were measured.
        in_training: Those of both that the checkpoint was trained on; None if it does not record
            its training images.
        parts: With results.
        results: On the measured pictures, if any: `before` of the old checkpoint, `after` of the
            new one, and, if heads were refitted, of the one that was not written.
        revision: Of the new checkpoint.
        policy: That was written, if any.
    """

    fitted: int
    measured: int
    in_training: int | None
    parts: Sequence[FittedPart]
    results: Mapping[str, SiteMeasurement]
    revision: str
    policy: Policy | None

    @property
    def tables(self) -> str:
        tables = [parts_table(self.parts)]
        if self.results:
            columns = {name: measured.results for name, measured in self.results.items()}
            tables.append(results_table("held-out pictures", columns))
        return "\n\n".join(tables)


def calibrate_site(
    source: Path, local: LocalImages, out: Path, settings: SiteSettings, device: str
) -> SiteReport:
    """Fits the checkpoint in `source` to local pictures and writes the result to `out`.

    Raises:
        CheckpointError: If `out` is not empty.
        OutputPathError: If `out` is in `source`.
        DataError: For too few lesions for any part or a policy with other classes.
    """
    check_new_checkpoint(out, source)
    checkpoint, policy = load_checkpoint(source), settings.policy.policy
    images, held_out = _split_images(local.images, settings.hold_out)
    names = checkpoint.config.class_names
    units = Units.of(images)
    counts = dict(zip(names, units.counts(len(names)), strict=True))
    parts = _site_parts(local, units, counts, settings)
    data = f"{local.name}, site pictures{'' if settings.hold_out is None else ' of the fit'}"
    held_out_name = f"{local.name}, held-out site pictures"
    seen = images_in_training(source, local.images)
    options = settings.options
    old = EulerLoRA.of(checkpoint, device, options.precision)
    if parts[ROUTINE].available:
        check_classes(old, policy.target)
    unscaled = {"temperature": 1.0, "stoch_temperature": None}
    model = EulerLoRA.of(
        replace(checkpoint, config=checkpoint.config.model_copy(update=unscaled)),
        device,
        options.precision,
    )
    outputs = CalibrationOutputs.of(model, images, data, [*CALIBRATED_SAMPLES, options.samples])
    start = _SiteFit(checkpoint.config, checkpoint.feature_distance, outputs, parts)
    if policy.unfamiliar is not None:
        if any(one.revision == checkpoint.revision for one in policy.evidence):
            start = replace(start, unfamiliar=policy.unfamiliar)
        else:
            start = start.with_result(FAR, "removed: it was fitted to another model")
    known, of_fit = read_training_images(source), image_digests(images)

    def fitted(fit: _SiteFit) -> Checkpoint:
        facts = {  # without a date, so that a second fit has the same revision
            "source": checkpoint.revision,
            "data": data,
            "data_sha256": data_sha256(images, names),
            "images": len(images),
            "unit": units.unit,
            "units": {name: count for name, count in counts.items() if count},
            "results": {name: part.result for name, part in fit.parts.items() if part.result},
            **({} if seen is None else {"in_training": len(seen)}),
            **({} if fit.heads is None else {"heads": True}),
        }
        provenance = fit.config.provenance | {"site": facts}
        config = fit.config.model_copy(update={"provenance": provenance})
        network = checkpoint.network
        if fit.heads is not None:
            network = load_checkpoint(source).network  # not rounded to a precision
            network.heads = fit.heads
            digest = tensors_sha256(dict(network.adapter_parameters()))
            adapters = config.adapters.model_copy(update={"sha256": digest})
            config = config.model_copy(update={"adapters": adapters})
        digest = hashlib.sha256(save(_digests(known, of_fit, fit))).hexdigest()
        config = config.model_copy(update={"training_images_sha256": digest})
        return replace(
            checkpoint,
            network=network,
            config=config,
            revision=revision_of(config),
            feature_distance=fit.distance,
        )

    def policy_of(fit: _SiteFit) -> Policy | None:
        if fit.policy_fit is None:
            return None
        fitted = settings.policy.fitted(fit.policy_fit)
        return fitted.model_copy(update={"unfamiliar": fit.unfamiliar})

    def measure(fit: _SiteFit) -> SiteMeasurement:
        model = EulerLoRA.of(fitted(fit), device, options.precision)
        return _measure_site(model, held_out, options, policy_of(fit), held_out_name)

    fit, results = _fit_site(start, settings), dict[str, SiteMeasurement]()
    if held_out:
        before = policy if parts[ROUTINE].available else None
        results["before"] = _measure_site(old, held_out, options, before, held_out_name)
        results["after"] = measure(fit)
    refit = None
    if parts[_HEADS].met:
        refit = _with_refitted_heads(start, checkpoint.network.heads, settings)
    if isinstance(refit, str):
        fit = fit.with_result(_HEADS, refit)
    elif refit is not None:
        with_heads = _fit_site(refit, settings)
        results["new heads"] = measure(with_heads)
        helps, result = _compare(results["after"], results["new heads"], held_out)
        if helps:
            fit = with_heads
            results["thresholds only"] = results["after"]
            results["after"] = results.pop("new heads")
        fit = fit.with_result(_HEADS, f"{'refitted' if helps else 'not refitted'}: {result}")
    shown = {image.name for image in (images if fit.heads is not None else seen or ())}
    in_training = len({image.name for image in images} & shown)
    if fit.policy_fit is not None:
        for part in policy_parts(fit.policy_fit, in_training):
            if part.part in fit.parts:
                fit = fit.with_result(part.part, part.result)
    kept = {sets.coverage for sets in fit.config.prediction_sets}
    for sets in checkpoint.config.prediction_sets:
        if sets.coverage not in kept and sets_part(sets.coverage) in fit.parts:
            removed = "removed: they belonged to the temperature and heads before"
            fit = fit.with_result(sets_part(sets.coverage), removed)
    was, now = (config.threshold(options) for config in (checkpoint.config, fit.config))
    if was and now and was.feature_distance and now.feature_distance and fit.parts[OOD].met:
        moved = f"{was.feature_distance.threshold:.4g} to {now.feature_distance.threshold:.4g}"
        result = f"{fit.parts[OOD].result}; feature distance from {moved}"
        fit = fit.with_result(OOD, result)
    written, new_policy = fitted(fit), policy_of(fit)
    if fit.policy_fit is not None and new_policy is not None:
        after = results.get("after")
        measured = () if after is None or after.policy is None else (after.policy,)
        evidence = evidence_of(
            written, options, fit.policy_fit, data, measured, in_training, far=fit.far
        )
        new_policy = new_policy.model_copy(update={"evidence": (evidence,)})
    adapters = None if fit.heads is None else dict(written.network.adapter_parameters())
    with new_folder(out, last=CONFIG_FILE) as partial:
        copy_checkpoint(
            partial,
            source,
            written.config,
            site_card(stored_card(source), written.config),
            _digests(known, of_fit, fit),
            None if fit.distance is None else fit.distance.statistics,
            adapters,
        )
        if new_policy is not None:
            settings.policy.write(partial / "policy.toml", new_policy)
    return SiteReport(
        fitted=len(images),
        measured=len(held_out),
        in_training=None if seen is None else len(seen),
        parts=list(fit.parts.values()),
        results=results,
        revision=written.revision,
        policy=new_policy,
    )


def _compare(
    old: SiteMeasurement, new: SiteMeasurement, images: Sequence[LabelledImage]
) -> tuple[bool, str]:
    """True if refitted heads are better on pictures outside of the fit; and in words."""
    comparison = HeadComparison.of(
        old.log_probabilities,
        new.log_probabilities,
        torch.tensor([image.label for image in images]),
        Units.of(images),
    )
    helps, result = comparison.bound > 0, comparison.summary
    if old.policy is not None and new.policy is not None:
        before, after = old.policy.ranking["target_auroc"], new.policy.ranking["target_auroc"]
        assert before is not None and after is not None  # images of both kinds
        helps &= after.value >= before.value
        result += f"; AUROC, target, {after.value:.3f} instead of {before.value:.3f}"
    return helps, result


def _digests(known: Mapping[str, Tensor], of_fit: Tensor, fit: _SiteFit) -> dict[str, Tensor]:
    """Digests of the images of the source, `known`, with those of a fit."""
    changed = {CALIBRATION_IMAGES: [of_fit]}
    if fit.heads is not None and "adapters" in known:
        changed["adapters"] = [of_fit]
    return {**known} | {
        name: torch.cat([*added, *([known[name]] if name in known else [])]).unique()
        for name, added in changed.items()
    }


def _site_parts(
    local: LocalImages, counted: Units, counts: Mapping[str, int], settings: SiteSettings
) -> dict[str, FittedPart]:
    """The parts by name, in their order, without results.

    `counts` are those of the units by the checkpoint's classes. A fit with folds needs groups.

    Raises:
        DataError: For lesions that suffice for no part.
    """
    units, total, fewest = f"{counted.unit}s", len(counted), min(counts.values())
    groups, of_groups = len(np.unique(counted.groups)), f"{counted.group}s"
    coverage, target = settings.coverage, settings.policy.policy.target
    of_each = f"{units} of each class of the model"
    of_classes, of_sets = fewest, of_each
    if coverage.always_include_rare:
        of_classes, of_sets = max(counts.values()), f"{units} of a class"
    critical = sum(counts.get(name, 0) for name in target.critical.classes)
    required = settings.sensitivity, settings.predictive_value
    listed = [
        FittedPart(_HEADS, MIN_HEADS, groups, of_groups),
        FittedPart(_TEMPERATURE, _MIN_TEMPERATURE, min(fewest, groups), of_each),
        FittedPart(FEATURES, _MIN_FEATURES, groups, of_groups),
        FittedPart(OOD, _MIN_OOD, total, units),
        *(
            FittedPart(sets_part(stated), min_units(stated), of_classes, of_sets)
            for stated in coverage.coverages
        ),
        *target_parts(critical, total, *required, target, units),
    ]
    if settings.policy.policy.unfamiliar is not None:
        of_target = sum(counts.get(name, 0) for name in target.classes)
        listed.append(FittedPart(FAR, 1, of_target, f"{units} of {target.name}"))
    parts = {part.part: part for part in listed}
    if not any(part.met for part in parts.values()):
        ood, routine = parts[OOD], parts[ROUTINE]
        raise DataError(
            f"{local.name}: expected at least {ood.needed} {ood.unit}, or {routine.needed} "
            f"{routine.unit}; got {ood.available} and {routine.available}"
        )
    return parts


def _split_images(
    images: Sequence[LabelledImage], held_out: float | None
) -> tuple[Sequence[LabelledImage], Sequence[LabelledImage]]:
    """The images to fit to and to measure on, sorted by name, without a common group.

    Args:
        images: Those of a `cluster_name` are a group.
        held_out: Share of the groups to measure on, 0 to 1, as `split_off`; None for none.
    """
    if held_out is None:
        return images, ()
    ordered = sorted(images, key=lambda image: image.cluster_name)
    fitted, measured = split_off(ordered, held_out)
    by_name = attrgetter("name")
    return sorted(fitted, key=by_name), sorted(measured, key=by_name)


def _measure_site(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    options: Options,
    policy: Policy | None,
    data: str,
) -> SiteMeasurement:
    """The results of a model on at least one picture.

    Args:
        model: With the calibration of the site.
        images: That had no part in the fit.
        options: Of its predictions.
        policy: None leaves out what depends on a policy.
        data: Name of the pictures.
    """
    (trajectories,) = predict_all(model, images, [options], "measure")
    thresholds = model.config.threshold(options)
    summary = Predictions.of(trajectories, model.feature_distance, thresholds)
    measured, results, units = None, dict[str, str](), Units.of(images)
    unit = units.unit
    if policy is not None:
        inputs = policy_inputs(model.classes, summary, images, policy.target)
        if inputs.critical.any() and not inputs.target.all():
            measured = measure_policy(inputs, policy, data)
            critical = measured.evidence.critical
            low, high = critical.sensitivity_low, critical.sensitivity_high
            results |= {
                f"sensitivity, {critical.lesions} critical {unit}s": (
                    f"{critical.sensitivity:.3f} [{low:.3f}, {high:.3f}]"
                ),
                f"critical {unit}s urgent": str(critical.urgent),
                f"critical {unit}s unfamiliar": str(critical.unfamiliar),
                f"critical {unit}s referred by the target": str(critical.refer),
                **measured.results,
            }
    labels = torch.tensor([image.label for image in images])
    nll = units.means(image_nll(trajectories.flat_log_probabilities, labels, 1.0))
    results[f"NLL, mean over {unit}s"] = f"{nll.mean():.3f}"
    for score, flags in summary.flags.items():
        kept = proportion((~flags).numpy(), units.image_groups)
        assert kept is not None  # there is a picture
        results[f"pictures kept by {score}"] = kept.text()
    calibrated = applying(model.config.prediction_sets, options)
    for sets in set_coverages(summary.probabilities, images, model.classes, calibrated):
        results[f"classes in a set of {sets.coverage:g}"] = f"{sets.mean_size:.2f}"
        for name, covered in sets.classes.items():
            results[f"coverage of {sets.coverage:g} for {unit}s of {name}"] = covered.units.text()
    return SiteMeasurement(results, measured, trajectories.flat_log_probabilities)
