"""Import of LoRA-Ensemble's checkpoints, as its authors publish them for Vision Transformers.

A file is a state dict that torch saved (github.com/prs-eth/LoRA-Ensemble, commit be52ff5). The
first dimension of every tensor is that of the members; with W the width of the backbone:

    encoder_layer_{block}_{q|k|v|out}_proj_w_a.weight    (members, rank, W)
    encoder_layer_{block}_{q|k|v|out}_proj_w_b.weight    (members, W, rank)
    head_weight, head_bias                               (members, classes, W), (members, classes)

A member adds w_b w_a to the weight of a projection, without a factor alpha / rank. The backbone is
one of torchvision's and not in the file. Images are divided by 255 and resized to a square.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.weights import (
    at_image_size,
    finite,
    published_backbone,
    tensors_sha256,
)
from eulerlora.exchange.folders import read_any_tensors
from eulerlora.exchange.importing import ImportedAdapters, import_adapters
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.settings import validated

BACKBONE = "ViT_B_32_Weights.IMAGENET1K_V1"
"""Of the published checkpoints."""

_PROJECTION = "encoder_layer_{}_{}_proj_w_{}.weight"
_PROJECTIONS = ("q", "k", "v", "out")
_DATA_SET = re.compile(r"_(CIFAR100|CIFAR10|HAM10000)_settings")
"""In the names of the published files."""
_CLASSES = {
    "CIFAR10": "airplane automobile bird cat deer dog frog horse ship truck",
    "CIFAR100": (
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
        "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach "
        "couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house "
        "kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle "
        "mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
        "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal "
        "shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper "
        "table tank telephone television tiger tractor train trout tulip turtle wardrobe whale "
        "willow_tree wolf woman worm"
    ),
    "HAM10000": "bkl nv df mel vasc bcc akiec",
}
"""In the order of the labels: those of the CIFAR files; by first appearance in HAM10000's table."""


def import_lora_ensemble(
    path: Path,
    out: Path,
    backbone: str = BACKBONE,
    classes: Sequence[str] = (),
    name: str = "imported",
    preprocessing: Preprocessing | None = None,
) -> CheckpointConfig:
    """Writes a checkpoint with the members of a file as adapters, and returns its config.

    `backbone` is the name of torchvision's weights that the members were trained on; `classes` are
    names, () for those of the data set in the name of a published file. A `preprocessing` of None
    is that of the authors.

    Raises:
        CheckpointError: For any other or damaged file, and if `out` is not empty.
        SettingsError: For a backbone that is not available, and another number of class names.
    """
    if not path.is_file():
        raise CheckpointError(path, "expected a file of LoRA-Ensemble, got no regular file")
    tensors = read_any_tensors(path)
    frozen = published_backbone(backbone)
    prepared = preprocessing or Preprocessing(size=frozen.settings.image_size)
    frozen = at_image_size(frozen, prepared.size)
    try:
        adapters = _adapters(path, tensors, frozen.settings)
    except SettingsError as error:
        raise CheckpointError(path, str(error)) from error
    origin = {
        "source": backbone,
        "revision": None,
        "architecture": "torchvision",
        "licence": None,
        "sha256": tensors_sha256(frozen.state_dict()),
    }
    names = classes or _class_names(path, adapters.head_bias.shape[1])
    return import_adapters(adapters, frozen, {"imported": origin}, prepared, names, name, out)


def _adapters(
    path: Path, tensors: Mapping[str, Tensor], shape: BackboneSettings
) -> ImportedAdapters:
    members, rank, _ = _dimensions(tensors, _PROJECTION.format(0, "q", "a"), "rank")
    _, classes, _ = _dimensions(tensors, "head_weight", "classes")
    shapes = {"head_weight": (members, classes, shape.width), "head_bias": (members, classes)}
    grid = [[(block, name) for name in _PROJECTIONS] for block in range(shape.layers)]
    for block, name in itertools.chain(*grid):
        shapes[_PROJECTION.format(block, name, "a")] = (members, rank, shape.width)
        shapes[_PROJECTION.format(block, name, "b")] = (members, shape.width, rank)
    for tensor_name, expected in shapes.items():
        given = tuple(tensors[tensor_name].shape) if tensor_name in tensors else "none"
        if given != expected:
            raise SettingsError(f"{tensor_name}: expected shape {expected}, got {given}")
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise SettingsError(
            f"expected adapters of {shape.layers} blocks and heads alone, got {unknown[0]} too"
        )
    read = {name: finite(path, name, tensors[name]) for name in shapes}

    def stacked(letter: str) -> Tensor:
        blocks = [[read[_PROJECTION.format(*place, letter)] for place in row] for row in grid]
        return torch.stack([torch.stack(block) for block in blocks])

    return ImportedAdapters(
        validated(AdapterSettings, {"adapters": members, "rank": rank, "min_rank": rank}),
        stacked("a"),
        stacked("b").mT,
        read["head_weight"],
        read["head_bias"],
        "lora-ensemble",
        [path.name],
    )


def _dimensions(tensors: Mapping[str, Tensor], name: str, second: str) -> torch.Size:
    """The shape of a tensor with members, `second` and width."""
    if name not in tensors:
        names = ", ".join(list(tensors)[:3]) or "no tensors"
        raise SettingsError(f"expected a file of LoRA-Ensemble with a tensor {name}, got {names}")
    if tensors[name].ndim != 3:
        raise SettingsError(
            f"{name}: expected shape (members, {second}, width), got {tuple(tensors[name].shape)}"
        )
    return tensors[name].shape


def _class_names(path: Path, count: int) -> list[str]:
    known = _DATA_SET.search(path.name)
    return [f"class_{i}" for i in range(count)] if known is None else _CLASSES[known[1]].split()
