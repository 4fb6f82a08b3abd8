"""The checkpoint of a network that one's own loop trained, and the check of the loop's input."""

from collections.abc import Sequence
from pathlib import Path

import torch

from eulerlora.checkpoint.files import UNKNOWN_TRAINING, config_of, save_checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.images.files import rgb_images
from eulerlora.images.preprocess import network_input, normalise
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.scores.uncertainty import kind_of, shape_of
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError

_MAX_LEVELS = 2.0
"""Accepted mean difference of a picture's pixels between loop and service, of 255. Rounding to
eight bits is 0.3, and another filter on a picture of noise 7."""


def save_trained(
    folder: Path,
    network: AdaptedVisionTransformer,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    name: str,
    library: str,
) -> None:
    """Writes a checkpoint without thresholds to a new folder.

    `library` is that of the backbone. Errors as in `save_checkpoint`.
    """
    origin = {
        "source": library,
        "revision": None,
        "architecture": library,
        "licence": None,
        "sha256": tensors_sha256(network.backbone.state_dict()),
    }
    config = config_of(
        network, preprocessing, classes, name, {"imported": origin}, {"format": "adapt"}
    )
    card = (
        f"# {name}\n\nTrained in a loop of its own on a backbone of {library}. It is not "
        f"calibrated: it has no thresholds. {UNKNOWN_TRAINING}\n"
    )
    save_checkpoint(folder, network, config, card)


def check_input(check: object, preprocessing: Preprocessing) -> None:
    """Compares tensors of the loop with the service's input of the same pictures.

    Raises:
        SettingsError: If they differ.
        ImageError: For an unusable picture.
    """
    if not isinstance(check, tuple | list) or len(check) != 2:
        raise SettingsError(f"check: expected tensors and their pictures, got {kind_of(check)}")
    fed, pictures = check
    images = rgb_images(pictures, preprocessing.input_side)
    whole = preprocessing.of_whole_images
    served = [network_input(image.pixels, whole) for image in images]
    shape = (len(served), 3, preprocessing.size, preprocessing.size)
    if not served or shape_of(fed) != shape:
        raise SettingsError(
            f"check: expected tensors {shape} of {len(served)} pictures, at least one, got "
            f"{kind_of(fed)}"
        )
    expected = normalise(torch.stack(served), preprocessing)
    std = torch.tensor(preprocessing.std).view(3, 1, 1)
    actual = fed.detach().to(expected)
    levels = ((expected - actual) * std).abs().mean(dim=(1, 2, 3)) * 255
    worst = int(levels.nan_to_num(torch.inf).argmax())
    if not levels[worst] <= _MAX_LEVELS:
        ranges = " and ".join(
            f"{images[worst].min():.2f} to {images[worst].max():.2f}"
            for images in (actual, expected)
        )
        picture = pictures[worst] if isinstance(pictures, Sequence) else None
        file = getattr(picture, "filename", picture)  # of Pillow's images
        named = f" ({file})" if isinstance(file, str | Path) and file else ""
        raise SettingsError(
            "check: expected the service's input of the same pictures, got picture "
            f"{worst}{named} with a mean difference of {levels[worst]:.1f} of 255 levels (values "
            f"{ranges} in loop and service); the stated preprocessing is {preprocessing}"
        )
