"""The finished network that a weight distribution is fitted to, and its images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.images.preprocess import network_input
from eulerlora.methods.registry import build_network
from eulerlora.methods.settings import MethodSettings
from eulerlora.nn.attention import AttentionAdapters
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.runtime import predict_images
from eulerlora.settings import Draw
from training.data.images import ImageParts, LabelledImage, evenly_spaced, read_image

BATCH = 32
SAMPLES = 4
"""Samples per adapter when a fit compares predictions."""


@dataclass(frozen=True)
class Inputs:
    """Prepared images: pixels (n, 3, size, size) on the device, labels (n,) on the CPU."""

    pixels: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Source:
    """A finished network with plain adapters, on the device, and the images of its data set."""

    network: AdaptedVisionTransformer
    config: CheckpointConfig
    images: ImageParts
    device: torch.device

    def inputs(self, part: str, count: int) -> Inputs:
        """Returns at most `count` evenly spaced images of a part, as in a prediction."""
        return self._inputs(evenly_spaced(self.images.parts[part], count))

    @property
    def held_out(self) -> str:
        """The part that the adapters were not trained on: `calibration`, or else `test`."""
        return "calibration" if "calibration" in self.images.parts else "test"

    def _inputs(self, images: Sequence[LabelledImage]) -> Inputs:
        preprocessing = self.config.preprocessing
        pixels = [network_input(read_image(i.name, i.source), preprocessing) for i in images]
        labels = torch.tensor([image.label for image in images])
        return Inputs(torch.stack(pixels).to(self.device), labels)


@torch.no_grad()
def with_method(
    source: AdaptedVisionTransformer, method: MethodSettings
) -> AdaptedVisionTransformer:
    """Returns a network of another method with the same backbone, adapters and heads.

    The tensors that only the other method has are zero. Its adapters draw no masks.
    """
    settings = source.settings.model_copy(update={"min_rank": source.settings.rank})
    classes = source.heads.bias.shape[1]
    network = build_network(source.backbone, settings, classes, source.preprocessing, method).to(
        source.heads.bias.device
    )
    for name, parameter in source.adapter_parameters():
        network.get_parameter(name).copy_(parameter)
    return network.eval()


def adapters_of(network: AdaptedVisionTransformer) -> Iterator[AttentionAdapters]:
    """Yields the adapters of each block."""
    for block in network.blocks:
        assert isinstance(block, AttentionAdapters)
        yield block


def mean_probabilities(
    network: AdaptedVisionTransformer, pixels: Tensor, samples: int | None = SAMPLES
) -> Tensor:
    """Returns the mean probabilities (n, classes), float64 on the CPU.

    samples: per adapter; None for mode det. Image i has the seed i, so that two calls differ in the
    network only.
    """
    draws = [
        Draw() if samples is None else Draw(mode="stoch", samples=samples, seed=seed)
        for seed in range(len(pixels))
    ]
    outputs = [
        output.log_probabilities.exp().mean(dim=0)
        for start in range(0, len(pixels), BATCH)
        for output in predict_images(
            network, pixels[start : start + BATCH], draws[start : start + BATCH]
        )
    ]
    return torch.stack(outputs)
