"""A network whose weights are all trained, in the form of a network with adapters.

Its only adapter has the value 0, so that it equals its backbone with a head, and its checkpoint is
one of adapters on a backbone of its own.
"""

import torch
from torch import Tensor

from eulerlora.checkpoint.backbone import with_weights
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import Preprocessing
from training.recipe.network import NO_ADAPTERS, WholeNetworkSettings

PROJECTED = ("in_proj_weight", "in_proj_bias")
"""Parameters of queries, keys and values, one after the other."""


def whole_network(
    backbone: VisionTransformer,
    settings: WholeNetworkSettings,
    classes: int,
    preprocessing: Preprocessing,
) -> AdaptedVisionTransformer:
    """Returns a network with a copy of the backbone's weights, all of which are trained.

    With `attention=l2` the keys get the weights of the queries, and keep them in training. The
    heads are zero.
    """
    shape = backbone.settings.model_copy(update={"attention": settings.attention})
    state = {name: tensor.detach().clone() for name, tensor in backbone.state_dict().items()}
    if settings.attention == "l2":
        state = {name: _tied(name, tensor) for name, tensor in state.items()}
    network = build_network(with_weights(shape, state), NO_ADAPTERS, classes, preprocessing)
    return train_all_weights(network)


def train_all_weights(network: AdaptedVisionTransformer) -> AdaptedVisionTransformer:
    """Returns the network with trainable weights of backbone and head, but not of the adapter."""
    network.blocks.requires_grad_(False)
    network.backbone.requires_grad_(True)
    if network.backbone.settings.attention == "l2":
        for name, parameter in network.backbone.named_parameters():
            if name.endswith(PROJECTED):
                parameter.register_hook(tied_gradient)
    return network


def count_trained(network: AdaptedVisionTransformer) -> int:
    """Returns the number of trained parameters; tied ones count once."""
    trained = {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}
    count = sum(trained.values())
    if network.backbone.settings.attention == "l2":
        count -= sum(size // 3 for name, size in trained.items() if name.endswith(PROJECTED))
    return count


def tied_gradient(gradient: Tensor) -> Tensor:
    """Returns the gradient of queries and keys with the same weights: the sum of both, twice.

    gradient: (3 * width, ...), of queries, keys and values. The optimiser then gives equal weights
    equal updates.
    """
    queries, keys, values = gradient.chunk(3)
    return torch.cat([queries + keys, queries + keys, values])


def _tied(name: str, tensor: Tensor) -> Tensor:
    """Returns the tensor with the queries' weights for the keys."""
    if not name.endswith(PROJECTED):
        return tensor
    queries, _, values = tensor.chunk(3)
    return torch.cat([queries, queries, values])
