"""Vision Transformers in memory: a copy of one of torchvision, timm or transformers."""

import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.weights import from_torchvision
from eulerlora.exchange.libraries import backbone_of, describe_timm, is_timm
from eulerlora.exchange.preprocessing import preprocessing_of
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import CheckpointError, SettingsError

_MAX_DIFFERENCE = 1e-5
"""Of the features of the copied backbone from those of the original, relative to the largest."""

_Library = Literal["torchvision", "timm", "transformers"]


def backbone_of_module(vit: nn.Module) -> tuple[VisionTransformer, _Library]:
    """Copies a float32 Vision Transformer in memory, on its device, in evaluation mode.

    The features of the copy are compared with those of `vit` on two random images.

    Raises:
        SettingsError: If they differ, and for another network.
    """
    _check_plain(vit)
    library = _library_of(vit)
    _check_square(vit, library)
    backbone = _copied(vit, library).to(next(vit.parameters()).device).eval()
    _check_features(vit, backbone, library)
    return backbone, library


def preprocessing_of_module(vit: Any, library: _Library, image_size: int) -> Preprocessing | None:
    """What the library's own configuration of a network in memory states; None for nothing.

    It is timm's `pretrained_cfg`, for this image size, or the image processor in the folder, or in
    the cache of the Hub, from which transformers loaded the network, if it is for this image size.
    """
    stated: Preprocessing | None = None
    try:
        if library == "timm" and (config := getattr(vit, "pretrained_cfg", None)):
            size = {"input_size": (3, image_size, image_size)}
            stated = preprocessing_of({"pretrained_cfg": dict(config) | size}, image_size)
        elif library == "transformers" and (folder := _folder_of(vit)) is not None:
            from eulerlora.exchange.folders import WeightsSource, stated_preprocessing  # noqa: PLC0415

            source = WeightsSource(folder, folder.name)
            stated = stated_preprocessing(source, image_size, vit.config.model_type)
    except (SettingsError, CheckpointError):
        return None  # `save` asks for one
    return stated if stated is not None and stated.size == image_size else None


def _folder_of(vit: Any) -> Path | None:
    """The folder from which transformers loaded a network."""
    name = vit.config.name_or_path
    if not name or Path(name).is_dir():
        return Path(name) if name else None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - of transformers

    revision = getattr(vit.config, "_commit_hash", None)
    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


_WRAPPERS = {
    "OptimizedModule": ("a compiled network", "vit._orig_mod"),
    "DataParallel": ("a network in DataParallel", "vit.module"),
    "DistributedDataParallel": ("a network in DistributedDataParallel", "vit.module"),
    "FullyShardedDataParallel": ("a sharded network", "the network before sharding"),
    "AdaptedClassifier": ("a network that has adapters", "the network that adapt got"),
    "Sequential": ("several modules in a row", "the Vision Transformer alone"),
}
"""Modules around a network by their class: what they are, and what to give instead."""
_LIBRARIES = "a Vision Transformer of torchvision, timm or transformers"


def _check_plain(vit: object) -> None:
    """Raises SettingsError if the parameters of `vit` are not those of a network of a library."""
    if not isinstance(vit, nn.Module):
        raise SettingsError(f"vit: expected {_LIBRARIES}, got {type(vit).__name__}")
    name = next((kind.__name__ for kind in type(vit).__mro__ if kind.__name__ in _WRAPPERS), None)
    if name is not None and type(vit).__module__.partition(".")[0] in ("torch", "eulerlora"):
        kind, inner = _WRAPPERS[name]
        raise SettingsError(f"vit: expected {_LIBRARIES}, got {kind}; give {inner}")
    if isinstance(vit, torch.jit.ScriptModule):
        raise SettingsError(f"vit: expected {_LIBRARIES}, got a TorchScript module")
    homes = {part for module in vit.modules() for part in type(module).__module__.split(".")}
    if "peft" in homes:
        raise SettingsError(
            "vit: expected a network without adapters, got layers of PEFT; give "
            "vit.merge_and_unload() to keep what they learned, or vit.unload()"
        )
    if homes & {"quantized", "bitsandbytes", "torchao", "auto_gptq", "awq", "quanto"}:
        raise SettingsError(
            "vit: expected float32 parameters, got quantised layers; load it without quantisation"
        )
    if "parametrize" in homes or torch.nn.utils.parametrize.is_parametrized(vit):
        raise SettingsError(
            "vit: expected plain parameters, got parametrised ones; remove them with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    parameters = list(vit.parameters())
    if not parameters:
        raise SettingsError(
            f"vit: expected {_LIBRARIES}, got {type(vit).__name__} without parameters"
        )
    types = sorted({str(parameter.dtype) for parameter in parameters} - {str(torch.float32)})
    if types:
        quantised = not all(parameter.is_floating_point() for parameter in parameters)
        way = "load it without quantisation" if quantised else "give vit.float()"
        raise SettingsError(f"vit: expected float32 parameters, got {', '.join(types)}; {way}")
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1:
        raise SettingsError(
            f"vit: expected one device, got {', '.join(devices)}; use vit.to(device)"
        )
    if devices == ["meta"]:
        raise SettingsError("vit: expected weights, got parameters on the device meta; load them")
    if not all(parameter.isfinite().all() for parameter in parameters):
        raise SettingsError("vit: expected finite parameters, got NaN or infinity")


def _check_square(vit: Any, library: _Library) -> None:
    """Raises SettingsError for rectangular images or patches, and for other channels than three."""
    if library == "torchvision":
        return  # it has squares only
    if library == "timm":
        source, names = getattr(vit, "patch_embed", None), ("img_size", "patch_size")
        channels = getattr(getattr(source, "proj", None), "in_channels", 3)
    else:
        source = getattr(vit.config, "vision_config", vit.config)
        names = ("image_size", "patch_size")
        channels = getattr(source, "num_channels", 3)
    for name in names:
        size = getattr(source, name, None)
        if isinstance(size, list | tuple) and len(set(size)) != 1:
            raise SettingsError(
                f"vit: expected square images and patches, got {name}={tuple(size)}; rectangular "
                "ones are not supported"
            )
    if channels != 3:
        raise SettingsError(f"vit: expected images of 3 channels, got {channels}")


def _library_of(vit: nn.Module) -> _Library:
    modules = {kind.__module__.partition(".")[0] for kind in type(vit).__mro__}
    if "torchvision" in modules and hasattr(vit, "conv_proj"):
        return "torchvision"
    if "timm" in modules and hasattr(vit, "blocks"):
        return "timm"
    if "transformers" in modules:
        return "transformers"
    raise SettingsError(
        f"vit: expected {_LIBRARIES}, got {type(vit).__module__}.{type(vit).__name__}"
    )


def _copied(vit: Any, library: _Library) -> VisionTransformer:
    if library == "transformers":  # its files have the names that are known, its modules may not
        from transformers.utils import logging  # noqa: PLC0415 - an extra

        shown = logging.is_progress_bar_enabled()
        with tempfile.TemporaryDirectory() as folder:
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            try:
                vit.save_pretrained(folder)
            finally:
                if shown:
                    logging.enable_progress_bar()  # type: ignore[no-untyped-call]
            from eulerlora.exchange.folders import WeightsSource, read_source  # noqa: PLC0415

            try:
                return read_source(WeightsSource(Path(folder), type(vit).__name__)).backbone
            except CheckpointError as error:
                raise SettingsError(f"vit: {error.reason}") from error
    state = {name: tensor.detach().cpu().clone() for name, tensor in vit.state_dict().items()}
    if library == "torchvision":
        backbone = from_torchvision(vit)
        parameters = {name: state[name] for name in backbone.state_dict()}
        backbone.load_state_dict(parameters, assign=True)
        return backbone
    if not is_timm(state):
        raise SettingsError(
            "vit: expected a Vision Transformer of timm with patch_embed.proj and attn.qkv, got "
            f"{type(vit).__name__}"
        )
    block = vit.blocks[0]
    quick = type(block.mlp.act).__name__ == "QuickGELU"
    arguments = {"num_heads": block.attn.num_heads} | ({"act_layer": "quick_gelu"} if quick else {})
    config = {"global_pool": vit.global_pool, "model_args": arguments}
    return backbone_of(describe_timm(config, state))


@torch.no_grad()
def _check_features(vit: nn.Module, backbone: VisionTransformer, library: _Library) -> None:
    size, device = backbone.settings.image_size, next(vit.parameters()).device
    images = torch.rand(2, 3, size, size, generator=Generator().manual_seed(0)).to(device)
    training = [module for module in vit.modules() if module.training]
    vit.eval()
    try:
        expected = _features(vit, images, library)
    finally:
        for module in training:
            module.training = True
    difference = (backbone(images) - expected).abs().max().item()
    if not difference <= _MAX_DIFFERENCE * max(1, expected.abs().max().item()):
        raise SettingsError(
            f"vit: expected a network with the features of its architecture, got {difference:.1e} "
            "as the largest difference"
        )


def _features(vit: Any, images: Tensor, library: _Library) -> Tensor:
    """The input (n, width) of the original's head."""
    features: Tensor
    if library == "timm":
        features = vit.forward_head(vit.forward_features(images), pre_logits=True)
    elif library == "transformers":
        tower = getattr(vit.base_model, "vision_model", vit.base_model)
        if not hasattr(tower, "embeddings"):  # DINOv3's base_model is its encoder
            tower = vit
        output = tower(pixel_values=images)
        is_clip = vit.config.model_type.startswith("clip")
        features = output.pooler_output if is_clip else output.last_hidden_state[:, 0]
    else:
        inputs: list[Tensor] = []
        handle = vit.heads.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            vit(images)
        finally:
            handle.remove()
        features = inputs[0]
    return features
