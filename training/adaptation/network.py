"""The network of a run: its frozen backbone with adapters, or a network with trained weights.

A network whose weights are all trained has the form of one with adapters: its only adapter has the
value 0, so that it equals its backbone with a head, and its checkpoint is one of adapters on a
backbone of its own. A run trains one or several members of this form.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from eulerlora.checkpoint.files import (
    BACKBONE_IMAGES,
    CONFIG_FILE,
    DEFAULT_CHECKPOINT,
    load_checkpoint,
    read_training_images,
)
from eulerlora.checkpoint.weights import (
    BACKBONE_FILE,
    BackboneFile,
    at_image_size,
    load_backbone,
    published_backbone,
    with_weights,
)
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import AUTO
from eulerlora_contract.settings import validated
from training.optimisation.run import round_parameters
from training.recipe.schema import (
    EMBEDDED,
    NO_ADAPTERS,
    AdapterRecipe,
    BackboneSource,
    WholeNetworkSettings,
)


@dataclass(frozen=True)
class FrozenBackbone(BackboneFile):
    """A frozen backbone.

    Attributes:
        published: Name of its published weights, if it has such.
        shown: Digests of the images of its training, (images,) int64, if its checkpoint has them.
    """

    published: str | None = None
    shown: Tensor = field(default_factory=lambda: torch.tensor([], dtype=torch.int64))


_DOWNLOADED = "ViT_B_32_Weights.IMAGENET1K_V1"
"""What `auto` selects where the weights are stored or can be downloaded."""


def available_source(source: BackboneSource) -> BackboneSource:
    """The source with `auto` replaced by published weights or by the embedded backbone.

    Prints why it selects the embedded one. Another source is returned unchanged.
    """
    if source.weights != AUTO:
        return source
    reason = f"{_DOWNLOADED} have another image size"
    if source.image_size is None:
        try:
            with _connection_timeout(30.0):
                published_backbone(_DOWNLOADED)
            return source.model_copy(update={"weights": _DOWNLOADED})
        except SettingsError as error:
            reason = str(error)
    print(
        f"note: using the embedded backbone, made for dermatoscopic pictures ({reason})",
        file=sys.stderr,
    )
    return source.model_copy(update={"weights": EMBEDDED})


@contextmanager
def _connection_timeout(seconds: float) -> Iterator[None]:
    """Limits how long a connection waits; torch.hub sets no limit."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)


def read_backbone(
    source: BackboneSource, recipe_folder: Path, dtype: torch.dtype
) -> FrozenBackbone:
    """The backbone of a recipe: a file, relative to the recipe, the embedded backbone, or
    published weights.

    The weights of a file are rounded to `dtype`, the type that the checkpoint stores.

    Raises:
        SettingsError: For published weights that are unavailable or combined with an image size.
    """
    source = available_source(source)
    if source.weights == EMBEDDED or source.weights.endswith(".safetensors"):
        if source.file is not None:
            raise SettingsError(
                "expected backbone.file only with published weights, got backbone.weights="
                f"{source.weights}"
            )
        packaged = DEFAULT_CHECKPOINT / BACKBONE_FILE
        path = packaged if source.weights == EMBEDDED else recipe_folder / source.weights
        file = load_backbone(path)
        size = source.image_size or file.preprocessing.size
        backbone = at_image_size(file.backbone, size)
        round_parameters(backbone.named_parameters(), dtype)
        frozen = FrozenBackbone(backbone, file.provenance, file.preprocessing.at_size(size))
        if not (path.parent / CONFIG_FILE).exists():
            return frozen
        shown = read_training_images(path.parent).get(BACKBONE_IMAGES, frozen.shown)
        return replace(frozen, shown=shown)
    if source.image_size is not None:
        raise SettingsError(
            f"expected backbone.image_size={source.image_size} with a backbone file, got the "
            f"published weights {source.weights}, whose size is fixed"
        )
    file_path = None if source.file is None else recipe_folder / source.file
    backbone = published_backbone(source.weights, file_path)
    preprocessing = Preprocessing(size=backbone.settings.image_size)
    return FrozenBackbone(backbone, {}, preprocessing, source.weights)


def initial_network(
    recipe: AdapterRecipe, frozen: FrozenBackbone, classes: int, previous: Path | None = None
) -> AdaptedVisionTransformer:
    """The network before its first step, with random heads.

    A recipe of the whole network may continue from the checkpoint `previous`, with its heads; None
    starts from the backbone.
    """
    chosen = {"colour_constancy": recipe.colour_constancy, "canvas": recipe.canvas}
    preprocessing = validated(Preprocessing, frozen.preprocessing.model_dump() | chosen)
    generator = Generator().manual_seed(recipe.seed)
    if recipe.whole_network is None:
        network = build_network(
            frozen.backbone, recipe.adapters, classes, preprocessing, recipe.method
        )
        network.initialise(generator)
        return network
    start = None if previous is None else load_checkpoint(previous).network
    backbone = frozen.backbone if start is None else start.backbone
    network = whole_network(backbone, recipe.whole_network, classes, preprocessing)
    if start is None:
        network.heads.initialise(generator)
    else:
        network.heads.load_state_dict(start.heads.state_dict())
    return network


_PROJECTED = ("in_proj_weight", "in_proj_bias")
"""Ends of the names of the parameters of queries, keys and values, one after the other."""


def whole_network(
    backbone: VisionTransformer,
    settings: WholeNetworkSettings,
    classes: int,
    preprocessing: Preprocessing,
) -> AdaptedVisionTransformer:
    """A network with a copy of the backbone's weights, all of which are trained.

    With `attention=l2` the keys get the weights of the queries, and keep them in training. The
    heads are zero.
    """
    changed = backbone.settings.model_dump() | {"attention": settings.attention}
    shape = validated(BackboneSettings, changed)
    state = {name: tensor.detach().clone() for name, tensor in backbone.state_dict().items()}
    if settings.attention == "l2":
        for name, tensor in state.items():
            if name.endswith(_PROJECTED):
                queries, keys, _ = tensor.chunk(3)
                keys.copy_(queries)
    network = build_network(with_weights(shape, state), NO_ADAPTERS, classes, preprocessing)
    return train_all_weights(network)


def train_all_weights(network: AdaptedVisionTransformer) -> AdaptedVisionTransformer:
    """Makes the weights of backbone and head trainable, but not those of the adapter, in place."""
    network.blocks.requires_grad_(False)
    network.backbone.requires_grad_(True)
    if network.backbone.settings.attention == "l2":
        for name, parameter in network.backbone.named_parameters():
            if name.endswith(_PROJECTED):
                parameter.register_hook(_tied_gradient)
    return network


def count_trained(network: AdaptedVisionTransformer) -> int:
    """The number of trained parameters; tied ones count once."""
    trained = {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}
    count = sum(trained.values())
    if network.backbone.settings.attention == "l2":
        count -= sum(size // 3 for name, size in trained.items() if name.endswith(_PROJECTED))
    return count


def _tied_gradient(gradient: Tensor) -> Tensor:
    """The gradient of queries and keys with the same weights: the sum of both, twice.

    The optimiser then gives equal weights equal updates. `gradient` is (3 * width, ...), of
    queries, keys and values.
    """
    queries, keys, values = gradient.chunk(3)
    return torch.cat([queries + keys, queries + keys, values])


@dataclass(frozen=True)
class Member:
    """One network of a run, or its only one.

    Attributes:
        folder: Of its checkpoint.
        recipe: With a seed of its own; the first has the seed of the run, and is the single network
            of that seed if the ensemble is explicit. Snapshots share the epochs, the first ones one
            more than the last if they do not divide; only the first has a warm-up.
        previous: The folder of the snapshot from whose weights it starts; None for the backbone.
    """

    folder: Path
    recipe: AdapterRecipe
    previous: Path | None = None


def members(recipe: AdapterRecipe, out: Path) -> list[Member]:
    """The members of a run in order: one in `out`, or those of an ensemble in folders below it."""
    whole = recipe.whole_network
    if whole is None or whole.members == 1:
        return [Member(out, recipe)]
    digits = len(str(whole.members))
    folders = [out / "members" / f"{index + 1:0{digits}}" for index in range(whole.members)]
    is_snapshot = whole.ensemble == "snapshot"
    ensemble = []
    for index, folder in enumerate(folders):
        training, seed = recipe.training, recipe.seed
        if is_snapshot:
            assert isinstance(training.epochs, int)
            epochs, more = divmod(training.epochs, whole.members)
            cycle: dict[str, object] = {"epochs": epochs + (index < more)}
            cycle |= {"warmup_steps": 0} if index else {}
            training = training.model_copy(update=cycle)
        if index:
            seed = int(np.random.SeedSequence((recipe.seed, index)).generate_state(1)[0])
        of_member = recipe.model_copy(update={"seed": seed, "training": training})
        previous = folders[index - 1] if is_snapshot and index else None
        ensemble.append(Member(folder, of_member, previous))
    return ensemble
