"""Training of adapters or whole networks, to a calibrated checkpoint with report and model card."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig
from eulerlora.checkpoint.files import (
    BACKBONE_IMAGES,
    CONFIG_FILE,
    Checkpoint,
    load_checkpoint,
    read_config,
    revision_of,
    save_checkpoint,
)
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import Provenance
from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.output_files import check_free, new_folder
from training.adaptation.network import (
    FrozenBackbone,
    Member,
    available_source,
    count_trained,
    initial_network,
    members,
    read_backbone,
)
from training.adaptation.network_training import train_adapters
from training.adaptation.objective import trained_images
from training.adaptation.probe import compare_with_probe, fit_heads, head_log_probabilities
from training.adaptation.summary import (
    basis_lines,
    check_lines,
    copies_lines,
    data_lines,
    loss_lines,
    pretraining_notes,
    print_lines,
    result_lines,
    run_lines,
)
from training.calibration.calibrate import calibrate, has_temperature
from training.calibration.thresholds import fit_temperature
from training.data.copies import check_images, data_digest, image_digests, write_copies
from training.data.datasets import (
    check_no_class,
    check_outside_pictures,
    pretraining_images,
    read_dataset,
    read_outliers,
)
from training.data.images import (
    ImageParts,
    LabelledImage,
    OodSet,
    report_skipped,
)
from training.data.registry import DATA_SETS, IMAGES
from training.data.splits import Part
from training.data.units import Units
from training.evaluation.evaluate import evaluate
from training.evaluation.ood_sets import recipe_ood_sets
from training.evaluation.report_schema import JSON, REPORT
from training.optimisation.batches import RunLength
from training.optimisation.run import (
    SAME_DATA,
    Run,
    Tracking,
    accelerator_on,
    check_stored_state,
    data_provenance,
    round_parameters,
    run_provenance,
)
from training.recipe.schema import SOURCE, AdapterRecipe
from training.reporting.model_card import model_card, write_model_card
from training.reporting.report import write_report


@dataclass(frozen=True)
class _SharedRun:
    """What the members of a run share; a run of one network or set of adapters has one member.

    Attributes:
        frozen: The backbone before the training.
        pretrained: Digests of the known images with which it was pretrained.
    """

    recipe: AdapterRecipe
    frozen: FrozenBackbone
    images: ImageParts
    ood: Sequence[OodSet]
    outliers: OodSet | None
    pretrained: Tensor
    members: Sequence[Member]
    accelerator: Accelerator
    resume: bool
    tracking: Tracking | None

    @cached_property
    def digests(self) -> Mapping[str, Tensor]:
        """Digests of the images by part, and of the outliers."""
        return {part: image_digests(images) for part, images in self._parts.items()}

    @property
    def _parts(self) -> Mapping[str, Sequence[LabelledImage]]:
        outliers = {} if self.outliers is None else {"outliers": self.outliers.images}
        return {**self.images.parts, **outliers}

    @cached_property
    def data_digest(self) -> str:
        """Of what a continued run must have again: the images, and the backbone that it adapts."""
        images = data_digest(self._parts, self.images.class_names, self.digests)
        backbone = tensors_sha256(self.frozen.backbone.state_dict())
        return hashlib.sha256(f"{images} {backbone}".encode()).hexdigest()

    @property
    def has_temperatures(self) -> bool:
        """False for an ensemble: the mean of calibrated members is less confident than right."""
        is_one = self.recipe.evaluation.temperature and len(self.members) == 1
        return is_one and has_temperature(self.images)

    @property
    def training_digests(self) -> Mapping[str, Tensor]:
        """Digests of the images that the weights depend on, those of validation included."""
        parts = ("train", "outliers", "validation")
        used = [self.digests[part] for part in parts if part in self.digests]
        return {
            "adapters": torch.cat(used).unique(),
            BACKBONE_IMAGES: self.pretrained,
        }

    @cached_property
    def probe(self) -> AdaptedVisionTransformer | None:
        """The first member with the probe that it starts from; None with a random head."""
        recipe = self.members[0].recipe
        if recipe.training.head == "random":
            return None
        network = initial_network(recipe, self.frozen, len(self.images.classes))
        _fit_probe(network, recipe, self)
        return network


def train(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tracking: Tracking | None = None,
    restart: bool = False,
    evaluation: bool = True,
) -> None:
    """Runs a recipe: trains, calibrates, saves, evaluates, and writes report and model card.

    A calibrated checkpoint appears in `out` atomically after training, those of an ensemble of
    whole networks in `members`. Until then, the state of a training is in `state_file` of
    its folder; `resume` continues from it, or with the next member or the evaluation if the
    checkpoint exists, if recipe, seed and images are the same; `restart` discards it; without
    either it is refused.
    The report in `out` is that of all members together; a run that has it is finished. Without
    `evaluation` a run ends with its checkpoints, before anything is measured on the test part: they
    have no calibration if the data have no calibration part.

    Prints the data and the run before the first step, and the test accuracy at the end. Paths in
    the recipe are relative to `recipe_folder`. With `skip_bad`, unusable images are skipped and
    listed on stderr and in the provenance. The folder of `tracking` is outside of `out`.

    Raises:
        SettingsError: For a recipe that does not fit its data or its stored state.
        DataError: For data that cannot be used, or other data than those of the stored state.
        NonFiniteError: For a loss or a gradient that is not finite.
        StorageError: If the state or the checkpoint cannot be written.
    """
    if tracking is not None and tracking.folder.resolve().is_relative_to(out.resolve()):
        raise SettingsError(f"expected a --track-dir outside of {out}, got {tracking.folder}")
    folders = [member.folder for member in members(recipe, out)]
    finished = [resume and (folder / CONFIG_FILE).exists() for folder in folders]
    for folder, done in zip(folders, finished, strict=True):
        if not done:
            check_free(folder)
            check_stored_state(state_file(folder), resume, restart)
    is_evaluated = all(finished) and (out / REPORT / JSON).exists()
    if evaluation and not is_evaluated:
        check_free(out / REPORT)
    check_outside_pictures(out, recipe.data, data)
    images = _read_labelled(recipe, data, skip_bad)
    if recipe.target is not None and not set(recipe.target.classes) <= set(images.class_names):
        raise SettingsError(
            f"expected target.classes of {', '.join(images.class_names)}, got "
            f"{', '.join(recipe.target.classes)}"
        )
    ood = recipe_ood_sets(recipe.evaluation.ood, data, skip_bad)
    outliers = read_outliers(recipe.outliers, data, skip_bad) if recipe.outliers else None
    accelerator = accelerator_on(device)
    main = accelerator.is_main_process
    if main:
        report_skipped(images, *ood, *([outliers] if outliers else []))
        print_lines(data_lines(images))
    recipe = recipe.model_copy(update={"backbone": available_source(recipe.backbone)})
    frozen = read_backbone(recipe.backbone, recipe_folder, getattr(torch, recipe.stored))
    pretrained = _pretraining_digests(frozen, recipe, data)
    shared = _SharedRun(
        recipe,
        frozen,
        images,
        ood,
        outliers,
        pretrained,
        members(recipe, out),
        accelerator,
        resume,
        tracking,
    )
    if main:
        print_lines(pretraining_notes(shared.digests, pretrained))
        if not DATA_SETS[recipe.data.kind].published:
            check = check_images(images, frozen.preprocessing.size)
            print_lines(check_lines(check, images, frozen.preprocessing.size))
            print_lines(copies_lines(check, refused=True))
            check.refuse_copies()
        print_lines(basis_lines(images))
    for index, done in enumerate(finished):
        if done:
            _check_finished(shared, folders[index])
            if main:  # it was stored before the checkpoint
                state_file(folders[index]).unlink(missing_ok=True)
        else:
            _train_member(shared, index, evaluation or "calibration" in images.parts)
        accelerator.wait_for_everyone()
    if main and is_evaluated:
        print_lines([f"the run in {out} is finished"])
    elif main and evaluation:
        _evaluate_checkpoints(shared, out)
    accelerator.wait_for_everyone()
    if main:
        print_lines([f"checkpoint in {out}"])


def _pretraining_digests(frozen: FrozenBackbone, recipe: AdapterRecipe, data: Path) -> Tensor:
    """Of the images with which a backbone was pretrained, as far as its files and `data` tell."""
    named = pretraining_images(frozen.provenance, recipe.data, data)
    digests: Tensor = torch.cat([image_digests(named), frozen.shown]).unique()
    return digests


def _check_finished(shared: _SharedRun, folder: Path) -> None:
    facts = read_config(folder).provenance
    expected = shared.recipe.model_dump(mode="json", exclude=SOURCE)
    if {key: facts["recipe"][key] for key in facts["recipe"].keys() - SOURCE} != expected:
        raise SettingsError(
            f"{folder}: expected the checkpoint of this recipe and seed, got other settings"
        )
    if facts.get("data_digest") != shared.data_digest:
        raise DataError(f"{folder}: expected the checkpoint of {SAME_DATA}")


def check_data(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    copies: Path | None = None,
    skip_bad: bool = False,
) -> bool:
    """Checks the data of a recipe and prints what it finds; True if `train` takes them.

    Unreadable images and copies are listed; the copies also in the CSV file `copies`. With
    `skip_bad`, as in `train`, unreadable images are no reason to refuse.

    Raises:
        DataError: For labels and folders that cannot be used.
    """
    images = _read_labelled(recipe, data, skip_bad=True)
    report_skipped(images)
    print_lines(data_lines(images))
    frozen = read_backbone(recipe.backbone, recipe_folder, torch.float32)
    digests = {part: image_digests(images.parts[part]) for part in images.parts}
    print_lines(pretraining_notes(digests, _pretraining_digests(frozen, recipe, data)))
    side = frozen.preprocessing.size
    check = check_images(images, side)
    print_lines([*check_lines(check, images, side), *copies_lines(check), *basis_lines(images)])
    if copies is not None:
        write_copies(copies, check)
    unusable = images.skipped and not skip_bad
    return not (unusable or check.in_classes or check.in_parts)


def _read_labelled(recipe: AdapterRecipe, data: Path, skip_bad: bool) -> ImageParts:
    images = read_dataset(recipe.data, data, skip_bad)
    others = [settings.path for settings in recipe.evaluation.ood if settings.kind == IMAGES]
    if recipe.outliers is not None:
        others.append(recipe.outliers.path)
    for path in others:
        check_no_class(path, recipe.data, data, images)
    return images


def _train_member(shared: _SharedRun, index: int, calibrated: bool) -> None:
    images, outliers, accelerator = shared.images, shared.outliers, shared.accelerator
    member, count, device = shared.members[index], len(shared.members), accelerator.device
    folder, recipe, previous = member.folder, member.recipe, member.previous
    dtype: torch.dtype = getattr(torch, recipe.stored)
    frozen = shared.frozen
    network = initial_network(recipe, frozen, len(images.classes), previous)
    if index == 0 and shared.probe is not None:
        network.heads.load_state_dict(shared.probe.heads.state_dict())
    elif previous is None and recipe.training.head != "random":
        _fit_probe(network, recipe, shared)
    length = RunLength.of(recipe.training, len(trained_images(images, outliers)))
    recipe = recipe.model_copy(update={"training": length.settled(recipe.training)})
    if accelerator.is_main_process:
        print_lines([f"member {index + 1} of {count}"] if count > 1 else [])
        print_lines(run_lines(recipe, frozen, count_trained(network), length, device))
    tracking = shared.tracking
    if tracking is not None and count > 1:
        name = f"{tracking.run}-{folder.name}"
        tracking = replace(tracking, run=name, folder=tracking.folder / folder.name)
    settings, state = recipe.without_source, state_file(folder)
    if accelerator.is_main_process and not shared.resume:
        state.unlink(missing_ok=True)
    run = Run(
        accelerator, recipe.seed, settings, state, shared.data_digest, shared.resume, tracking
    )
    result = train_adapters(network, recipe, images, outliers, run)
    network.cpu()
    whole = recipe.whole_network is not None
    round_parameters(network.named_parameters() if whole else network.adapter_parameters(), dtype)
    if not accelerator.is_main_process:
        return
    print_lines(loss_lines(recipe, result))
    provenance = run_provenance(shared.recipe, device) | data_provenance(images, outliers=outliers)
    provenance |= {"data_digest": shared.data_digest, "training": result}
    if whole:
        named = {} if frozen.published is None else {"fine_tuned_from": frozen.published}
        frozen = replace(frozen, published=None, provenance=frozen.provenance | named)
        provenance |= {"member": {"index": index, "seed": recipe.seed}}
    config = _checkpoint_config(recipe, network, frozen, images, provenance)
    digests, statistics = shared.training_digests, None
    if calibrated:
        chosen = shared.recipe.evaluation
        checkpoint = Checkpoint(network.eval(), config, revision_of(config))
        fitted = calibrate(
            checkpoint,
            images,
            device,
            chosen.calibrated,
            chosen.sampler,
            precision="auto",
            views=chosen.views,
            temperature=shared.has_temperatures,
        )
        config, statistics = fitted.config, fitted.statistics
        digests = {**digests, **fitted.images}
    card = model_card(config, None)
    save_checkpoint(folder, network, config, card, dtype, digests, statistics)
    state.unlink(missing_ok=True)


def _fit_probe(
    network: AdaptedVisionTransformer, recipe: AdapterRecipe, shared: _SharedRun
) -> None:
    seed = recipe.seed if recipe.training.head == "bootstrap-probes" else None
    fit_heads(network, shared.images, shared.accelerator.device, seed)


def state_file(out: Path) -> Path:
    """Where the state of an unfinished run is stored, beside `out`."""
    out = out if out.name else out.absolute()  # the current folder
    return out.parent / f"{out.name}.state.safetensors"


def _evaluate_checkpoints(shared: _SharedRun, out: Path) -> None:
    settings, images = shared.recipe.evaluation, shared.images
    folders = [member.folder for member in shared.members]
    device = shared.accelerator.device
    model, *others = [EulerLoRA(load_checkpoint(folder), device) for folder in folders]
    options = [model.options("det"), model.options("stoch", settings.samples)]
    evaluation = evaluate(model, images, shared.ood, options, settings.ood_images, others)
    if shared.probe is not None:
        head = shared.probe.to(device)
        tested = head_log_probabilities(head, images.parts["test"])
        if shared.has_temperatures:  # as that of the model
            held_out = images.parts["calibration"]
            fit = fit_temperature(
                head_log_probabilities(head, held_out).unsqueeze(1),
                torch.tensor([image.label for image in held_out]),
                Units.of(held_out),
            )
            tested = (tested / fit.temperature).log_softmax(dim=-1)
        probe = compare_with_probe(evaluation.test, tested)
        evaluation = replace(evaluation, report=replace(evaluation.report, probe=probe))
    with new_folder(out / REPORT, last=JSON) as partial:
        write_report(partial, evaluation)  # complete once the card is that of the report
        if not others:
            write_model_card(out, partial)
    training = model.config.provenance["training"]
    part: Part = "validation" if shared.recipe.data.split == "lesion-validation" else "test"
    print_lines(result_lines(evaluation.report, part, training, folders[0], out / REPORT))


def _checkpoint_config(
    recipe: AdapterRecipe,
    network: AdaptedVisionTransformer,
    frozen: FrozenBackbone,
    images: ImageParts,
    provenance: Provenance,
) -> CheckpointConfig:
    return CheckpointConfig(
        name=recipe.name,
        backbone=BackboneConfig(
            settings=network.backbone.settings,
            published=frozen.published,
            sha256=tensors_sha256(network.backbone.state_dict()),
            provenance=frozen.provenance,
        ),
        adapters=AdapterConfig(
            settings=recipe.adapters, sha256=tensors_sha256(dict(network.adapter_parameters()))
        ),
        method=network.method.settings,
        classes=images.classes,
        target=recipe.target,
        preprocessing=network.preprocessing,
        provenance=provenance,
    )
