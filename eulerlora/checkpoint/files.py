"""Checkpoint folders: weights, `config.json`, known answer and model card.

Files: `config.json`, `adapters.safetensors`, `README.md`, `known_answer.png`, `known_answer.json`,
`backbone.safetensors` unless the backbone is one of torchvision's published weights,
`ood.safetensors` if feature statistics were fitted, `training_images.safetensors` if the digests of
the training images are known, and beside a card that shows an evaluation a chart
`reliability-*.png` and a table of all results `results-*.csv`. A
checkpoint is data: no pickle in it is ever read, and only regular files are.

A checkpoint never changes: what fits it again writes a new folder (`copy_checkpoint`), and only
`README.md` and the files beside it are replaced. Should somebody edit the files while they are
read, a loaded model is still that of its revision: `config.json` is read once, and has the digests
of all tensors.

The known answer is an image with the probabilities that an intact model returns in float32 on a
CPU: `known_answer.png` has smooth random colours, and `known_answer.json` has its SHA-256 and the
probabilities.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from pydantic import ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig
from eulerlora.checkpoint.weights import (
    BACKBONE_FILE,
    CARD_FILE,
    check_digest,
    file_sha256,
    file_type,
    published_backbone,
    read_backbone_weights,
    read_tensors,
    read_whole,
    save_backbone,
    tensors_sha256,
    write_tensors,
)
from eulerlora.images.files import read_image
from eulerlora.images.preprocess import network_input
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import (
    FEATURES_PER_WIDTH,
    AdaptedVisionTransformer,
    RowNetwork,
    predict_images,
)
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.settings import UNSCALED, Draw, Preprocessing, Provenance, Temperatures
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import CheckpointError, ImageError, OutputPathError, SettingsError
from eulerlora_contract.output_files import (
    atomic_write,
    check_free,
    new_folder,
    write_text,
)
from eulerlora_contract.sampling import SAMPLERS, Precision
from eulerlora_contract.settings import Probability, Settings, Sha256, first_error, validated

_IMAGE_FILE, EXPECTED_FILE = "known_answer.png", "known_answer.json"
_DRAWS = (
    Draw(),
    *(Draw(mode="stoch", samples=4, seed=20260101, sampler=sampler) for sampler in SAMPLERS),
)
"""The draws of a known answer; with views, those of mode stoch have the checkpoint's."""
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.03}
"""Largest accepted difference of a probability from the stored one, by the model's precision."""

_IMAGE_SEED = 0
_SUM_TOLERANCE = 1e-6


class ExpectedProbabilities(Settings):
    """A draw and the class probabilities it gives, in the order of the classes."""

    draw: Draw
    probabilities: tuple[Probability, ...]

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        if abs(sum(self.probabilities) - 1) > _SUM_TOLERANCE:
            raise ValueError("probabilities do not sum to 1")
        return self


class _KnownAnswerFile(Settings):
    """The schema of `known_answer.json`."""

    picture_sha256: Sha256
    answers: tuple[ExpectedProbabilities, ...]


@dataclass(frozen=True)
class KnownAnswer:
    """What an intact model returns for an image.

    Attributes:
        pixels: The network's input, (3, size, size) in [0, 1].
        expected: By draw.
    """

    pixels: Tensor
    expected: tuple[ExpectedProbabilities, ...]
    classes: tuple[str, ...]

    @property
    def draws(self) -> tuple[Draw, ...]:
        return tuple(answer.draw for answer in self.expected)

    def fault(self, outputs: Sequence[Tensor], precision: Precision) -> str | None:
        """The first deviation from the stored probabilities as one line, or None.

        Args:
            outputs: Log-probabilities (trajectories, classes), as of `predict_known_answer`.
            precision: That the outputs were computed in; it sets the tolerance (`TOLERANCES`).
        """
        tolerance = TOLERANCES[precision]
        for expected, output in zip(self.expected, outputs, strict=True):
            place = f"the known answer is wrong: mode {expected.draw.mode}"
            actual = output.exp().mean(dim=0)
            if not actual.isfinite().all():
                return f"{place}: got NaN or infinity"
            stored = torch.tensor(expected.probabilities, dtype=torch.float64)
            deviation, worst = (actual - stored).abs().max(dim=0)
            if deviation > tolerance:
                return (
                    f"{place}: expected probability {stored[worst]:.4f} of {self.classes[worst]} "
                    f"within {tolerance}, got {actual[worst]:.4f}"
                )
        return None


def _known_draws(config: CheckpointConfig) -> tuple[Draw, ...]:
    return tuple(
        draw.model_copy(update={"views": config.default_views(draw.mode)}) for draw in _DRAWS
    )


def predict_known_answer(
    network: RowNetwork,
    pixels: Tensor,
    draws: Sequence[Draw] = _DRAWS,
    temperatures: Temperatures = UNSCALED,
) -> list[Tensor]:
    """Log-probabilities (trajectories, classes), float64, for each of `draws`.

    `pixels`, the input of one image, are on the network's device.
    """
    outputs = predict_images(network, torch.stack([pixels] * len(draws)), draws, temperatures)
    return [output.flat_log_probabilities[0] for output in outputs]


def _write_known_answer(folder: Path, network: RowNetwork, config: CheckpointConfig) -> None:
    """Writes the synthetic image and the model's probabilities to a checkpoint's folder.

    The network must be loaded from the checkpoint's files, in float32 on the CPU.
    """
    content = BytesIO()
    Image.fromarray(_synthetic_image().permute(1, 2, 0).numpy()).save(content, "PNG")
    image = content.getvalue()
    pixels = _network_input(folder / _IMAGE_FILE, image, config.preprocessing)
    draws = _known_draws(config)
    outputs = predict_known_answer(network, pixels, draws, config.temperatures)
    stored = _KnownAnswerFile(
        picture_sha256=hashlib.sha256(image).hexdigest(),
        answers=tuple(
            ExpectedProbabilities(draw=draw, probabilities=tuple(output.exp().mean(dim=0).tolist()))
            for draw, output in zip(draws, outputs, strict=True)
        ),
    )
    with atomic_write(folder / _IMAGE_FILE) as partial:
        partial.write_bytes(image)
    write_text(folder / EXPECTED_FILE, stored.model_dump_json(indent=2) + "\n")


def read_known_answer(folder: Path, config: CheckpointConfig) -> KnownAnswer:
    """Reads the known answer of the checkpoint with this config.

    Raises:
        CheckpointError: With file and reason, if a file is missing or damaged, or if the image, the
            probabilities and the config do not match.
    """
    image_path, expected_path = folder / _IMAGE_FILE, folder / EXPECTED_FILE
    try:
        stored = _KnownAnswerFile.model_validate_json(_read(expected_path))
    except ValidationError as error:
        raise CheckpointError(expected_path, first_error(error)) from error
    if tuple(answer.draw for answer in stored.answers) != _known_draws(config):
        raise CheckpointError(
            expected_path,
            "answers: expected det, then stoch with 4 samples of each sampler and the views of "
            f"{CONFIG_FILE}; got other draws",
        )
    classes = config.class_names
    for answer in stored.answers:
        if len(answer.probabilities) != len(classes):
            raise CheckpointError(
                expected_path,
                f"expected {len(classes)} probabilities, got {len(answer.probabilities)}",
            )
    image = _read(image_path)
    if hashlib.sha256(image).hexdigest() != stored.picture_sha256:
        raise CheckpointError(image_path, f"its SHA-256 differs from that in {EXPECTED_FILE}")
    pixels = _network_input(image_path, image, config.preprocessing)
    return KnownAnswer(pixels, stored.answers, classes)


def _synthetic_image() -> Tensor:
    """Smooth random colours, (3, height, width) uint8, different in every corner."""
    coarse = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(_IMAGE_SEED))
    smooth = F.interpolate(coarse, (96, 128), mode="bilinear", align_corners=True)[0]
    return (255 * smooth).round().to(torch.uint8)


def _read(path: Path) -> bytes:
    if not path.parent.is_dir():
        raise CheckpointError(path.parent, "there is no such folder")
    return read_whole(path)


_BLOB = re.compile(r"[0-9a-f]{40,64}")
"""Name of a file in the Hub's cache, to which the files of a snapshot are links."""


def _check_kinds(folder: Path) -> None:
    """Raises CheckpointError unless a checkpoint has only regular files and folders.

    A link could show any file of the machine, and reading a pipe might never end. The links of a
    snapshot in the Hub's cache lead to the folder `blobs` beside `snapshots`.
    """
    for path in _listed(folder):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # somebody changes the folder
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or _is_blob(path)):
            raise CheckpointError(path, f"expected a regular file, got {file_type(mode)}")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(folder, f"cannot be read ({error.strerror})") from error


def _is_blob(path: Path) -> bool:
    """True for a link of a snapshot in the Hub's cache to a regular file of the cache."""
    snapshot, target = path.parent.resolve(), Path(os.path.realpath(path))
    return (
        path.is_symlink()
        and snapshot.parent.name == "snapshots"
        and target.parent == snapshot.parent.parent / "blobs"
        and _BLOB.fullmatch(target.name) is not None
        and target.is_file()
    )


def _network_input(path: Path, content: bytes, preprocessing: Preprocessing) -> Tensor:
    try:
        return network_input(read_image(content, path.name).pixels, preprocessing)
    except ImageError as error:
        raise CheckpointError(path, str(error)) from error


FEATURES_FILE, TRAINING_IMAGES_FILE = "ood.safetensors", "training_images.safetensors"
CALIBRATION_IMAGES, BACKBONE_IMAGES = "calibration", "backbone"
"""The digests of images that thresholds, temperatures or sets were fitted to, in the latter."""
CONFIG_FILE, _ADAPTERS_FILE = "config.json", "adapters.safetensors"
CARD_FILES = ("reliability-*.png", "results-*.csv")
"""Beside the model card; their names have a digest, so that `README.md` names the right ones."""
_COPIED = (_ADAPTERS_FILE, BACKBONE_FILE, *CARD_FILES, "LICENSE*")
DEFAULT_CHECKPOINT = Path(__file__).parents[1] / "default"
"""The folder of the checkpoint that ships with the package."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        network: On the CPU in float32, in evaluation mode.
        revision: "sha256:" and the digest of `config.json`, which contains the digests of all
            weights.
        feature_distance: None without feature statistics.
        folder: Where it was read from.
    """

    network: AdaptedVisionTransformer
    config: CheckpointConfig
    revision: str
    feature_distance: FeatureDistance | None = None
    folder: Path | None = None


def load_checkpoint(folder: Path) -> Checkpoint:
    """Reads the checkpoint in `folder` and verifies its weights against `config.json`.

    The network is built without memory for its weights, which are then those of the files: the
    numbers in `config.json` alone allocate nothing.

    Raises:
        CheckpointError: With file and reason, if one is missing, damaged or not that of the config.
    """
    text, config = _read_config(folder)
    settings, backbone = config.adapters.settings, _read_backbone(folder, config)
    with torch.device("meta"):
        network = build_network(
            backbone, settings, len(config.classes), config.preprocessing, config.method
        )
    path = folder / _ADAPTERS_FILE
    tensors = read_tensors(path, dict(network.adapter_parameters()))
    check_digest(path, tensors, config.adapters.sha256)
    network.load_state_dict(tensors, strict=False, assign=True)
    distance = _read_feature_distance(folder, config)
    return Checkpoint(network.eval(), config, _revision(text), distance, folder)


def revision_of(config: CheckpointConfig) -> str:
    return _revision(_text(config).encode())


def stored_revision(folder: Path) -> str:
    """Reads the revision of a checkpoint, but not its weights.

    Raises:
        CheckpointError: As `read_config`.
    """
    return _revision(_read_config(folder)[0])


def read_config(folder: Path) -> CheckpointConfig:
    """Reads the config of a checkpoint, but not its weights.

    Raises:
        CheckpointError: If `config.json` is missing or not valid.
    """
    return _read_config(folder)[1]


def save_checkpoint(
    folder: Path,
    network: AdaptedVisionTransformer,
    config: CheckpointConfig,
    card: str,
    dtype: torch.dtype = torch.float32,
    training_images: Mapping[str, Tensor] | None = None,
    statistics: FeatureStatistics | None = None,
) -> None:
    """Writes a checkpoint to `folder`, missing or empty, which appears complete or not at all.

    The known answer is computed from the written files. The backbone is written unless the config
    names a published one; the digests of the config must be those of the weights rounded to
    `dtype`, and of the feature statistics. `training_images` are as in `read_training_images`.

    Raises:
        CheckpointError: If `folder` is not empty.
        StorageError: If the disk is full or fails.
    """
    with new_folder(folder, last=CONFIG_FILE) as partial:
        write_tensors(partial / _ADAPTERS_FILE, dict(network.adapter_parameters()), dtype, {})
        if config.backbone.published is None:
            chosen_by_recipe = {"colour_constancy": "none", "canvas": None}
            save_backbone(
                partial / BACKBONE_FILE,
                network.backbone,
                config.backbone.provenance,
                dtype,
                config.preprocessing.model_copy(update=chosen_by_recipe),
            )
        _complete_checkpoint(partial, config, card, training_images or {}, statistics)


def check_new_checkpoint(out: Path, source: Path) -> None:
    """Checks `out` before the long work whose result `copy_checkpoint` writes there.

    Raises:
        OutputPathError: If it is in `source`.
        CheckpointError: If it is not empty.
    """
    if out.resolve().is_relative_to(source.resolve()):
        raise OutputPathError(
            f"{out}: expected a folder outside of the checkpoint {source}, which never changes"
        )
    check_free(out)


def copy_checkpoint(
    folder: Path,
    source: Path,
    config: CheckpointConfig,
    card: str,
    training_images: Mapping[str, Tensor],
    statistics: FeatureStatistics | None,
    adapters: Mapping[str, Tensor] | None = None,
) -> CheckpointConfig:
    """Writes a checkpoint with the weights of that in `source`, which does not change.

    Args:
        folder: Empty, such as that of `new_folder`.
        source: Of the weights; if they are not those of `config`, it is refused.
        config: Of the new checkpoint.
        card: Of the new checkpoint.
        training_images: As in `read_training_images`.
        statistics: Of the features; their digest is in the config.
        adapters: That replace those of `source`; their digest is in the config.

    Returns:
        The written config: with the digest of the training images.

    Raises:
        CheckpointError: For files in `source` that are damaged or no longer those of the config.
    """
    for path in (path for pattern in _COPIED for path in source.glob(pattern)):
        with atomic_write(folder / path.name) as copied:
            shutil.copyfile(path, copied)
    if adapters is not None:
        write_tensors(folder / _ADAPTERS_FILE, adapters, torch.float32, {})
    return _complete_checkpoint(folder, config, card, training_images, statistics)


def _complete_checkpoint(
    folder: Path,
    config: CheckpointConfig,
    card: str,
    training_images: Mapping[str, Tensor],
    statistics: FeatureStatistics | None,
) -> CheckpointConfig:
    """Adds all other files to the weights; the known answer is computed from the written files."""
    if training_images:
        digest = _write_training_images(folder, training_images)
        config = config.model_copy(update={"training_images_sha256": digest})
    if statistics is not None:
        write_tensors(folder / FEATURES_FILE, statistics.tensors, torch.float32, {})
    _write_card(folder, card)
    _write_config(folder, config)
    _write_known_answer(folder, load_checkpoint(folder).network, config)
    return config


def _write_training_images(folder: Path, digests: Mapping[str, Tensor]) -> str:
    """Writes what `read_training_images` reads; returns the digest of the file for the config."""
    path = folder / TRAINING_IMAGES_FILE
    with atomic_write(path) as file:
        save_file(dict(digests), file)
    return file_sha256(path)


UNKNOWN_TRAINING = (
    "The images that it was trained on are not recorded, so that `eulerlora evaluate` cannot tell "
    "whether test images are among them."
)
"""For the card of a checkpoint whose adapters were trained elsewhere."""


def config_of(
    network: AdaptedVisionTransformer,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    name: str,
    backbone: Provenance,
    origin: Provenance,
) -> CheckpointConfig:
    """Config of a checkpoint that was not trained from a recipe.

    Its data set is folders named like the classes, for `eulerlora calibrate`; its digests are those
    of the network's weights at the time of the call. `backbone` and `origin` say where backbone and
    adapters come from.

    Raises:
        SettingsError: For a value that a config does not accept.
    """
    stored = BackboneConfig(
        settings=network.backbone.settings,
        published=None,
        sha256=tensors_sha256(network.backbone.state_dict()),
        provenance=backbone,
    )
    adapters = AdapterConfig(
        settings=network.settings, sha256=tensors_sha256(dict(network.adapter_parameters()))
    )
    data = {"kind": "imagefolder", "path": ".", "classes": {label: label for label in classes}}
    values = {
        "name": name,
        "backbone": stored,
        "adapters": adapters,
        "method": network.method.settings,
        "classes": tuple(ClassName(name=label, description=label) for label in classes),
        "preprocessing": preprocessing,
        "provenance": {"recipe": {"name": name, "data": data}, "imported": origin},
    }
    return validated(CheckpointConfig, values)


def read_training_images(folder: Path) -> dict[str, Tensor]:
    """Digests of the images that the checkpoint in `folder` was trained or calibrated on.

    They are (images,) int64, sorted, by what was trained: `adapters`, with the heads, or
    BACKBONE_IMAGES; and by CALIBRATION_IMAGES. Empty if `config.json` has no digest of their file.

    Raises:
        CheckpointError: For a file that is damaged or has another digest.
    """
    expected = _read_config(folder)[1].training_images_sha256
    if expected is None:
        return {}
    path = folder / TRAINING_IMAGES_FILE
    try:
        if file_sha256(path) != expected:
            raise CheckpointError(path, f"its SHA-256 differs from that in {CONFIG_FILE}")
        digests = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(path, "not a readable safetensors file") from error
    for name, tensor in digests.items():
        if tensor.dtype != torch.int64 or tensor.ndim != 1:
            raise CheckpointError(path, f"{name}: expected (images,) int64")
    return digests


def _write_config(folder: Path, config: CheckpointConfig) -> None:
    write_text(folder / CONFIG_FILE, _text(config))


def stored_card(folder: Path) -> str:
    """Reads the model card of a checkpoint.

    Raises:
        CheckpointError: If it is missing or unreadable.
    """
    _check_kinds(folder)
    return _read(folder / CARD_FILE).decode("utf-8", errors="replace")


def _write_card(folder: Path, card: str) -> None:
    """Replaces the folder's model card, `README.md`, in one step."""
    write_text(folder / CARD_FILE, card)


def _text(config: CheckpointConfig) -> str:
    return config.model_dump_json(indent=2) + "\n"


def _revision(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _read_config(folder: Path) -> tuple[bytes, CheckpointConfig]:
    _check_kinds(folder)
    path = folder / CONFIG_FILE
    text = _read(path)
    try:
        return text, CheckpointConfig.model_validate_json(text)
    except ValidationError as error:
        raise CheckpointError(path, first_error(error)) from error


def _read_backbone(folder: Path, config: CheckpointConfig) -> VisionTransformer:
    expected = config.backbone
    if expected.published is None:
        path = folder / BACKBONE_FILE
        backbone = read_backbone_weights(path, expected.settings)
    else:
        path = folder / CONFIG_FILE
        try:
            backbone = published_backbone(expected.published)
        except (SettingsError, OSError) as error:
            raise CheckpointError(path, f"backbone: {error}") from error
        if backbone.settings != expected.settings:
            raise CheckpointError(path, f"backbone.settings do not match {expected.published}")
    check_digest(path, backbone.state_dict(), expected.sha256)
    return backbone


def _read_feature_distance(folder: Path, config: CheckpointConfig) -> FeatureDistance | None:
    if config.features is None:
        return None
    path = folder / FEATURES_FILE
    width = FEATURES_PER_WIDTH * config.backbone.settings.width
    with torch.device("meta"):  # only the shapes matter
        expected = {
            "means": torch.empty(config.features.components, width),
            "covariance": torch.empty(width, width),
        }
    tensors = read_tensors(path, expected)
    check_digest(path, tensors, config.features.sha256)
    try:
        return FeatureDistance(FeatureStatistics(**tensors))
    except ValueError as error:
        raise CheckpointError(path, str(error)) from error
