"""torchvision's published weights as frozen backbones.

Only here does the method import torchvision, which takes as long to import as torch.
"""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError

import torch
from torchvision import models
from torchvision.models import WeightsEnum

from eulerlora.checkpoint.weights import with_weights
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import BackboneSettings
from eulerlora_client.errors import SettingsError

Builder = Callable[..., models.VisionTransformer]

PUBLISHED: dict[str, tuple[Builder, WeightsEnum]] = {
    f"{family.__name__}.{weights.name}": (builder, weights)
    for builder, family in (
        (models.vit_b_16, models.ViT_B_16_Weights),
        (models.vit_b_32, models.ViT_B_32_Weights),
        (models.vit_l_16, models.ViT_L_16_Weights),
        (models.vit_l_32, models.ViT_L_32_Weights),
        (models.vit_h_14, models.ViT_H_14_Weights),
    )
    for weights in family
}


def published_backbone(name: str, file: Path | None = None) -> VisionTransformer:
    """Returns a backbone with one of torchvision's published weights.

    The weights come from torch's hub cache. If the cache does not have them, `file` is copied to
    it, or they are downloaded. The hash of the file is verified and only tensors are read from it.
    name: such as `ViT_B_32_Weights.IMAGENET1K_V1`. Raises SettingsError for an unknown name, a file
    with another hash and a file that is not available.
    """
    builder, weights = _published(name)
    with torch.device("meta"):
        model = builder(image_size=weights.meta["min_size"][0])
    cached = _cached(weights.url)
    if file is not None:
        _check_hash(file, weights.url)
        _copy(file, cached)
    elif not cached.exists():
        _download(name, weights.url, cached)
    _check_hash(cached, weights.url)
    try:
        state = torch.load(cached, map_location="cpu", weights_only=True)
        model.load_state_dict(state, assign=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise SettingsError(f"{cached}: does not contain the weights {name}") from error
    return from_torchvision(model)


def _published(name: str) -> tuple[Builder, WeightsEnum]:
    if name not in PUBLISHED:
        raise SettingsError(
            f"expected published weights among {', '.join(PUBLISHED)}, got {name!r}"
        )
    return PUBLISHED[name]


def _cached(url: str) -> Path:
    """Returns the path of a published file in torch's hub cache."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _advice(url: str) -> str:
    return (
        f"fetch {url}, whose SHA-256 begins {_hash_prefix(url)}, and put it at {_cached(url)}, "
        "or train with --set backbone.file=PATH"
    )


def _copy(file: Path, cached: Path) -> None:
    """Copies a file to torch's hub cache in one step, unless the cache has it."""
    if cached.exists():
        return
    partial = cached.with_name(f".{cached.name}.{os.getpid()}.partial")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, partial)
        partial.replace(cached)
    except OSError as error:
        raise SettingsError(f"{file} cannot be copied to {cached} ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def _download(name: str, url: str, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), _hash_prefix(url), sys.stderr.isatty())
    except RuntimeError as error:  # torch.hub: the hash differs
        raise SettingsError(
            f"{name}: the downloaded file has another hash; {_advice(url)}"
        ) from error
    except (OSError, HTTPException) as error:
        reason = _system_reason(error)
        raise SettingsError(f"{name} cannot be downloaded{reason}; {_advice(url)}") from error


def _system_reason(error: Exception) -> str:
    """Returns " (REASON)" with the reason of the system, such as a full disk, if there is one."""
    cause = error.reason if isinstance(error, URLError) else error
    return f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""


def _check_hash(file: Path, url: str) -> None:
    """Verifies the hash in a file's name; torch.hub does so only after a download.

    Raises SettingsError.
    """
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror})") from error
    prefix = _hash_prefix(url)
    if not digest.startswith(prefix):
        raise SettingsError(
            f"{file}: expected a SHA-256 that begins {prefix}, got {digest[: len(prefix)]}; "
            "replace the file"
        )


def _hash_prefix(url: str) -> str:
    """Returns the first digits of a published file's SHA-256, which are part of its name."""
    return Path(url).stem.rpartition("-")[2]


def from_torchvision(model: models.VisionTransformer) -> VisionTransformer:
    """Returns a backbone with the weights of a Vision Transformer of torchvision, without its head.

    The norms of its layers are torchvision's default.
    """
    shape = BackboneSettings(
        image_size=model.image_size,
        patch_size=model.patch_size,
        layers=len(model.encoder.layers),
        heads=model.encoder.layers[0].num_heads,
        width=model.hidden_dim,
        mlp_width=model.mlp_dim,
    )
    state = {
        name: tensor for name, tensor in model.state_dict().items() if not name.startswith("heads.")
    }
    return with_weights(shape, state)
