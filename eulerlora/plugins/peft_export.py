"""Export to PEFT: the backbone as a ViT of transformers, and a folder for each adapter.

An adapter is LoRA, which has mode det, or EulerLoRA (`eulerlora.peft`) with both modes.
"""

from pathlib import Path
from typing import Literal

import torch

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.checkpoint.weights import CARD_FILE, write_tensors
from eulerlora.exchange.exporting import (
    ExportedAdapter,
    check_format,
    export_readme,
    exported_adapters,
    without_layer_scale,
    write_json,
)
from eulerlora.exchange.libraries import TRANSFORMERS_ACTIVATIONS, vit_state
from eulerlora.methods.registry import DEFAULT_METHOD
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.output_files import write_text

TransformersVersion = Literal[4, 5]
MODULE_PREFIX = "base_model.model."
SAMPLED_TYPE = "EULERLORA"
LAW = ("min_rank", "steps", "scale")
"""Settings of `AdapterSettings` that a folder of `eulerlora.peft` has too."""
VIT_PROJECTIONS: dict[TransformersVersion, tuple[str, ...]] = {
    4: (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    5: ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
}
"""Q, K, V and O of a block."""
_VIT_BLOCKS: dict[TransformersVersion, str] = {4: "vit.encoder.layer.{}.", 5: "vit.layers.{}."}
_TARGETS: dict[TransformersVersion, tuple[str, ...]] = {
    4: ("query", "key", "value", "attention.output.dense"),
    5: ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""PEFT's `target_modules`, which are suffixes of the names of modules."""


_BACKBONE_FOLDER = "backbone"
_PEFT_USE = """```python
import torch
from peft import PeftModel
from transformers import ViTForImageClassification

probabilities = []
for index in range({count}):
    backbone = ViTForImageClassification.from_pretrained("backbone")
    model = PeftModel.from_pretrained(backbone, f"adapter_{{index}}").eval()
    probabilities.append(model(pixel_values=images).logits.softmax(-1))
probabilities = torch.stack(probabilities).mean(0)
```

The names of the tensors are those of transformers {version}. `images` are the output of
`ViTImageProcessor.from_pretrained("backbone")`, whose filter differs from the checkpoint's by
rounding to 8 bits."""


_SAMPLED_USE = """

`import eulerlora.peft` first, which registers the method. With
`with eulerlora.peft.sampling(model, samples=4, seed=0):` around the call of the model, each
image has 4 rows of logits; without it the model answers in mode det."""


def export_peft(
    checkpoint: Checkpoint, folder: Path, version: TransformersVersion = 5, sampled: bool = False
) -> None:
    """Writes `backbone`, `adapter_0` and so on, and a README, to an existing folder.

    Adapters have the names of this version of transformers; sampled ones are of `eulerlora.peft`,
    others LoRA.

    Raises:
        SettingsError: For a method or a backbone that cannot be expressed.
    """
    check_format(checkpoint.network.backbone.settings, "peft")
    if sampled and checkpoint.config.method != DEFAULT_METHOD:
        raise SettingsError("--sampled: expected a checkpoint whose projections are all sampled")
    exported = exported_adapters(checkpoint)
    _write_backbone(checkpoint, folder / _BACKBONE_FOLDER)
    for index, member in enumerate(exported):
        _write_adapter(checkpoint, member, folder / f"adapter_{index}", version, sampled)
    use = _PEFT_USE.format(count=len(exported), version=version) + (_SAMPLED_USE if sampled else "")
    write_text(folder / CARD_FILE, export_readme(checkpoint, "PEFT", use, sampled))


def _write_backbone(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes a ViTForImageClassification whose head is zero; each adapter has its own."""
    backbone, config = checkpoint.network.backbone, checkpoint.config
    folder.mkdir()
    state = without_layer_scale(backbone.settings, backbone.state_dict())
    classes = len(config.classes)
    head = {
        "classifier.weight": torch.zeros(classes, backbone.settings.width),
        "classifier.bias": torch.zeros(classes),
    }
    tensors = {f"vit.{name}": tensor for name, tensor in vit_state(state).items()} | head
    write_tensors(folder / "model.safetensors", tensors, torch.float32, {"format": "pt"})
    write_json(folder / "config.json", _vit_config(checkpoint))
    write_json(folder / "preprocessor_config.json", _processor(config.preprocessing))


def _write_adapter(
    checkpoint: Checkpoint,
    member: ExportedAdapter,
    folder: Path,
    version: TransformersVersion,
    sampled: bool,
) -> None:
    tensors = {
        f"{MODULE_PREFIX}classifier.{name}": tensor
        for name, tensor in member.head.state_dict().items()
    }
    for index, factors in enumerate(zip(member.down, member.up, strict=True)):
        prefix = MODULE_PREFIX + _VIT_BLOCKS[version].format(index)
        for module, down, up in zip(VIT_PROJECTIONS[version], *factors, strict=True):
            tensors[f"{prefix}{module}.lora_A.weight"] = down
            tensors[f"{prefix}{module}.lora_B.weight"] = up
    folder.mkdir()
    write_tensors(folder / "adapter_model.safetensors", tensors, torch.float32, {"format": "pt"})
    settings = checkpoint.network.settings
    rank, law = settings.rank, {name: getattr(settings, name) for name in LAW}
    config = {
        "peft_type": SAMPLED_TYPE if sampled else "LORA",
        "task_type": None,
        "base_model_name_or_path": f"../{_BACKBONE_FOLDER}",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_TARGETS[version]),
        "modules_to_save": ["classifier"],
        "inference_mode": True,
    }
    write_json(folder / "adapter_config.json", config | (law if sampled else {}))


def _vit_config(checkpoint: Checkpoint) -> dict[str, object]:
    shape, names = checkpoint.network.backbone.settings, checkpoint.config.class_names
    activation = next(
        name for name, own in TRANSFORMERS_ACTIVATIONS.items() if own == shape.activation
    )
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.mlp_width,
        "hidden_act": activation,
        "layer_norm_eps": shape.norm_epsilon,
        "image_size": shape.image_size,
        "patch_size": shape.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def _processor(given: Preprocessing) -> dict[str, object]:
    """The `preprocessor_config.json` that comes closest to the preprocessing."""
    square = {"height": given.size, "width": given.size}
    cropped = given.shorter_side is not None
    return {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": given.shorter_side} if cropped else square,
        "resample": 2 if given.interpolation.startswith("bilinear") else 3,
        "do_center_crop": cropped,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": given.mean,
        "image_std": given.std,
    }
