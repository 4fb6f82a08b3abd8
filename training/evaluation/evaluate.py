"""Evaluation of a checkpoint on its test part and on out-of-distribution sets.

Every result has a confidence interval over the clusters of images.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.methods.registry import method_type
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import FeatureDistance, FlaggedScore
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import Options, applying
from training.data.copies import KnownImages, images_in_training, known_images
from training.data.images import ImageParts, LabelledImage, OodSet, evenly_spaced
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.mode_report import EvaluatedSet, mode_report
from training.evaluation.ood_sets import resemblance
from training.evaluation.report_schema import (
    TEST,
    OodSetFacts,
    Report,
    Subset,
    TrainedMethod,
)
from training.recipe.schema import SOURCE


@dataclass(frozen=True)
class Evaluation:
    """A report and the predictions behind it, of the test part and of the other sets by name.

    Attributes:
        classes: In the order of the probabilities.
        training: Facts on the training of each member, as in the checkpoint's provenance.
    """

    report: Report
    classes: tuple[str, ...]
    test: EvaluatedSet
    ood: Mapping[str, EvaluatedSet]
    training: Sequence[Mapping[str, Any]] = ()


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Sequence[OodSet],
    options: Sequence[Options],
    ood_images: int | None = None,
    others: Sequence[EulerLoRA] = (),
) -> Evaluation:
    """Evaluates a model on a data set's test part, once for each of `options` that can differ.

    Each image is read once for each member.

    Args:
        model: The only one, or the first member of an ensemble.
        images: With a test part.
        ood: Sets with distinct names.
        options: Of the modes of the report; without samples, modes of the same views are one.
        ood_images: At most so many of each set are used, evenly spaced; None for all.
        others: The other members of an ensemble, which answers with the mean over all of them.
    """
    models = (model, *others)
    shown = images.parts[TEST]
    if not method_type(model.config.method).is_sampled(model.config.adapters.settings):
        options = [*{one.views: one for one in reversed(options)}.values()][::-1]

    def evaluated(
        name: str, group: str, of_set: Sequence[LabelledImage], of_test: bool
    ) -> EvaluatedSet:
        predictions = _predictions(models, of_set, options, name)
        return EvaluatedSet(name, group, of_set, of_test, predictions)

    used = [replace(outside, images=evenly_spaced(outside.images, ood_images)) for outside in ood]
    test = evaluated(TEST, TEST, shown, True)
    sets = {o.name: evaluated(o.name, o.group, o.images, o.generated) for o in used}
    target, units = model.config.target, Units.of(shown)
    data = f"{images.name}, test part" if len(images.parts) > 1 else images.name
    folder = model.folder
    known = KnownImages(None, None) if folder is None else known_images(folder, shown)
    report = Report(
        model=model.config.name,
        method=_trained_method(model.config, len(models)),
        revision=_revision(models),
        data=data,
        images=len(shown),
        unit=units.unit,
        units=len(units),
        sampled=units.group,
        clusters=len(np.unique(units.groups)),
        seen=None if known.trained is None else len(known.trained),
        fitted=_fitted(model.config, data, known, len(shown)),
        notes=[
            printable(note)
            for note in (*images.notes, *(note for outside in ood for note in outside.notes))
        ],
        target=() if target is None else target.classes,
        ood_sets={
            outside.name: OodSetFacts(
                group=outside.group,
                generated=outside.generated,
                used=Subset(len(outside.images), len(whole.images)),
                seen=_seen(model, outside.images),
                resembles=resemblance(outside, model.config),
            )
            for outside, whole in zip(used, ood, strict=True)
        },
        modes=[
            mode_report(
                mode,
                index,
                test,
                sets,
                model.classes,
                () if target is None else target.classes,
                applying(model.config.prediction_sets, mode),
            )
            for index, mode in enumerate(options)
        ],
    )
    training = [member.config.provenance.get("training", {}) for member in models]
    return Evaluation(report, model.classes, test, sets, training)


def _trained_method(config: CheckpointConfig, members: int) -> TrainedMethod:
    """The method of a checkpoint, or of an ensemble of runs with its first member's settings."""
    adapters, recipe, title = config.adapters.settings, _recipe(config), method_title(config)
    settings = {
        "adapters": adapters.model_dump(mode="json"),
        "method": config.method.model_dump(mode="json"),
        "recipe": {key: recipe[key] for key in recipe.keys() - {*SOURCE, "seed"}},
        "members": members,
    }
    sampled = method_type(config.method).is_sampled(adapters)
    return TrainedMethod(
        title=title if members == 1 else f"ensemble of {members}: {title}",
        sampled=sampled,
        recipe_sha256=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        seed=recipe.get("seed"),
        settings=_other_settings(config, sampled),
    )


_UNCOMPARED = {
    "name", "seed", "target", "whole_network", "data.path", "backbone.file", "adapters.adapters",
    "adapters.rank", "adapters.min_rank", "method.name", "training.micro_batch_rows",
    "training.state_every_s", "training.workers", "training.metrics_by_epoch",
    "evaluation.samples", "evaluation.calibrated", "evaluation.ood", "evaluation.ood_images",
    *SOURCE,
}  # fmt: skip
"""Keys of a recipe that `method_title` states, or that change no answer."""
_OF_SAMPLING = {"adapters.steps", "adapters.scale", "training.samples", "evaluation.sampler"}


def _other_settings(config: CheckpointConfig, sampled: bool) -> dict[str, Any]:
    """The settings of a run that its title does not state, with what `auto` became."""
    settings: dict[str, Any] = {}
    for section, value in _recipe(config).items():
        nested = section in {"data", "backbone", "adapters", "method", "training", "evaluation"}
        values = value if nested and isinstance(value, dict) else {"": value}
        settings |= {f"{section}.{key}".rstrip("."): of_key for key, of_key in values.items()}
    if settings:
        done = config.provenance.get("training", {})
        for key in done.keys() & {"epochs", "batch_size", "steps", "precision"}:
            settings[f"training.{key}"] = done[key]
        settings["backbone.image_size"] = config.backbone.settings.image_size
        settings["images or backbone"] = config.provenance.get("data_digest", "")[:8]
    left_out = _UNCOMPARED if sampled else _UNCOMPARED | _OF_SAMPLING
    return {key: settings[key] for key in sorted(settings.keys() - left_out)}


def method_title(config: CheckpointConfig) -> str:
    """Such as "LoRA, rank 20"."""
    adapters, kind = config.adapters.settings, method_type(config.method)
    label = kind.label(adapters)
    if _recipe(config).get("whole_network") is not None:
        return "whole network"
    if adapters.adapters == 1:
        return f"{label}, rank {adapters.rank}"
    return f"{label}, {kind.members_text(adapters)}"


def _recipe(config: CheckpointConfig) -> Mapping[str, Any]:
    stored = config.provenance.get("recipe")
    return stored if isinstance(stored, dict) else {}  # other trainings store what they like


def _fitted(config: CheckpointConfig, data: str, known: KnownImages, images: int) -> int | None:
    """How many test images the calibration used; None if it is not known.

    Without digests, the parts of a data set are told apart by their names.
    """
    if known.fitted is not None:
        return len(known.fitted)
    names = {of.data for of in config.thresholds} | {of.data for of in config.prediction_sets}
    if data in names:
        return images
    name = data.removesuffix(", test part")
    return 0 if all(other.startswith(f"{name}, ") for other in names) else None


def _seen(model: EulerLoRA, images: Sequence[LabelledImage]) -> int | None:
    """How many of the images the training was shown; None if it is not known."""
    seen = None if model.folder is None else images_in_training(model.folder, images)
    return None if seen is None else len(seen)


def _predictions(
    models: Sequence[EulerLoRA],
    images: Sequence[LabelledImage],
    options: Sequence[Options],
    name: str,
) -> list[Predictions]:
    outputs = [predict_all(model, images, options, name) for model in models]
    if len(models) == 1:
        return [
            Predictions.of(
                trajectories, models[0].feature_distance, models[0].config.threshold(choice)
            )
            for trajectories, choice in zip(outputs[0], options, strict=True)
        ]
    distances = [model.feature_distance for model in models]
    return [_ensemble_summary(members, distances) for members in zip(*outputs, strict=True)]


def _ensemble_summary(
    members: Sequence[Trajectories], distances: Sequence[FeatureDistance | None]
) -> Predictions:
    """The summary of the trajectories of all members together, without thresholds.

    The feature distance is the mean over the members, each with its own statistics.
    """
    summary = Predictions.of(Trajectories.of_ensemble(members))
    values = [
        Predictions.of(member, distance).ood_scores["feature_distance"].value
        for member, distance in zip(members, distances, strict=True)
        if distance is not None
    ]
    if not values:
        return summary
    mean = FlaggedScore(torch.stack(values).mean(dim=0), None, None)
    return replace(summary, ood_scores={**summary.ood_scores, "feature_distance": mean})


def _revision(models: Sequence[EulerLoRA]) -> str:
    """The revision of a model, or of an ensemble a digest of its members' revisions."""
    if len(models) == 1:
        return models[0].revision
    revisions = "\n".join(model.revision for model in models)
    return f"sha256:{hashlib.sha256(revisions.encode()).hexdigest()}"
