"""Settings of every method, and networks of one adapter to compare them with."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from eulerlora.methods.ensembles import BatchEnsembleSettings, LastLayerEnsembleSettings
from eulerlora.methods.eulerlora import DropKeySettings, EulerLoRASettings, RankDropoutSettings
from eulerlora.methods.heads import EpiNetSettings, SNGPSettings
from eulerlora.methods.posteriors import LaplaceSettings, SWAGSettings, TFBSettings
from eulerlora.methods.registry import build_network
from eulerlora.methods.variational import BLoBSettings, GaussianCoefficientsSettings, IVONSettings
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings

METHODS: dict[str, MethodSettings] = {
    "eulerlora": EulerLoRASettings(),
    "output side": EulerLoRASettings(sides="output"),
    "rank dropout": RankDropoutSettings(kept=0.6),
    "fixed rank": RankDropoutSettings(law="fixed", kept=0.5),
    "gaussian coefficients": GaussianCoefficientsSettings(),
    "blob": BLoBSettings(),
    "ivon": IVONSettings(),
    "dropkey": DropKeySettings(),
    "batch-ensemble": BatchEnsembleSettings(blocks=1),
    "last-layer ensemble": LastLayerEnsembleSettings(),
    "sngp": SNGPSettings(features=32),
    "epinet": EpiNetSettings(hidden=10),
    "tfb": TFBSettings(deviation=0.1, tolerance=0.01, anchors=4),
    "laplace, last layer": LaplaceSettings(layers="last", prior_precision=1.0, images=4),
    "laplace, adapters": LaplaceSettings(layers="adapters", prior_precision=1.0, images=4),
    "laplace, kronecker": LaplaceSettings(
        layers="all", structure="kron", prior_precision=1.0, images=4
    ),
    "swag": SWAGSettings(learning_rate=0.1, steps=4, snapshots=2),
}

NO_CHANGES: Mapping[str, Tensor] = MappingProxyType({})


@torch.no_grad()
def plain_lora(
    network: AdaptedVisionTransformer, adapter: int, changes: Mapping[str, Tensor] = NO_CHANGES
) -> AdaptedVisionTransformer:
    """Returns a network of one adapter without a method: copies of weights, some of them changed.

    changes: by parameter name, such as `blocks.0.down`, the weights of one adapter.
    """
    settings = AdapterSettings(
        adapters=1, rank=network.settings.rank, min_rank=network.settings.rank
    )
    plain = build_network(network.backbone, settings, 3)
    for name, parameter in plain.adapter_parameters():
        axis = 0 if name.startswith("heads") else 1
        own = network.get_parameter(name).select(axis, adapter)
        parameter.copy_(changes.get(name, own).unsqueeze(axis))
    return plain
