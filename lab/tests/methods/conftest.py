"""Networks to compare methods with, and the end of a training that they are fitted to."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from eulerlora.methods.registry import build_network
from eulerlora.nn.method import LabelledBatch, MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from tests.eulerlora.conftest import images, network
from tests.service.conftest import current_metrics, photo, png

__all__ = [
    "after_training", "current_metrics", "images", "network", "network_like", "photo",
    "plain_lora", "png",
]  # fmt: skip


@pytest.fixture(scope="session")
def plain_lora() -> Callable[..., AdaptedVisionTransformer]:
    """Makes a network of one adapter without a method: copies of weights, some of them changed.

    `changes` has, by parameter name such as `blocks.0.down`, the weights of one adapter.
    """

    @torch.no_grad()
    def made(
        network: AdaptedVisionTransformer,
        adapter: int,
        changes: Mapping[str, Tensor] | None = None,
    ) -> AdaptedVisionTransformer:
        settings = AdapterSettings(
            adapters=1, rank=network.settings.rank, min_rank=network.settings.rank
        )
        plain = build_network(network.backbone, settings, 3)
        for name, parameter in plain.adapter_parameters():
            axis = 0 if name.startswith("heads") else 1
            own = network.get_parameter(name).select(axis, adapter)
            parameter.copy_((changes or {}).get(name, own).unsqueeze(axis))
        return plain

    return made


@pytest.fixture(scope="session")
def network_like() -> Callable[..., AdaptedVisionTransformer]:
    """Makes a network of a method with the adapters and heads of another network."""

    @torch.no_grad()
    def made(source: AdaptedVisionTransformer, method: MethodSettings) -> AdaptedVisionTransformer:
        classes = source.heads.bias.shape[1]
        network = build_network(source.backbone, source.settings, classes, method=method)
        for name, parameter in source.adapter_parameters():
            network.get_parameter(name).copy_(parameter)
        return network.eval()

    return made


@dataclass(frozen=True)
class GivenRun:
    images: Mapping[str, LabelledBatch] = field(default_factory=dict)
    image_count: int = 0
    batches: Iterable[LabelledBatch] = ()
    further_losses: Callable[[int], Iterator[Tensor]] | None = None
    clip_norm: float = 0.5

    def last_epoch(self) -> Iterable[LabelledBatch]:
        return self.batches

    def inputs(self, part: str, count: int) -> LabelledBatch:
        pixels, labels = self.images[part]
        return pixels[:count], labels[:count]

    def losses(self, steps: int) -> Iterator[Tensor]:
        assert self.further_losses is not None
        return self.further_losses(steps)

    def total(self, values: Tensor) -> Tensor:
        return values


@pytest.fixture(scope="session")
def after_training() -> Callable[..., MethodSettings]:
    """Ends the training of a network with the given run; returns the method's settings then."""

    def ended(network: AdaptedVisionTransformer, **run: object) -> MethodSettings:
        network.method.after_training(network, GivenRun(**run))
        return network.method.settings

    return ended
