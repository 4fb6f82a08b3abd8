"""Diagonal SWAG (Maddox et al., NeurIPS 2019): moments of the weights along SGD.

SGD with a constant rate continues from finished adapters; every weight becomes normal with the mean
and the variance of its values at equally spaced steps.
"""

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from eulerlora.methods.settings import SWAGSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_client.progress import track
from training.adaptation.objective import AdapterObjective
from training.bayesian.source import with_method
from training.fit.batches import LoadedBatches

MOMENTUM = 0.9


class Moments:
    """Running means of named tensors and of their squares, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.first: dict[str, Tensor] = {}
        self.second: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Adds a snapshot."""
        self.count += 1
        for name, tensor in tensors:
            exact = tensor.detach().double()
            for mean, value in ((self.first, exact), (self.second, exact.square())):
                previous = mean.setdefault(name, torch.zeros_like(exact))
                previous += (value - previous) / self.count

    @property
    def variances(self) -> Mapping[str, Tensor]:
        """The variance of every element over the snapshots (divided by their number)."""
        return {
            name: (self.second[name] - mean.square()).clamp_min(0)
            for name, mean in self.first.items()
        }


def fit_swag(
    objective: AdapterObjective,
    source: AdaptedVisionTransformer,
    batches: LoadedBatches,
    settings: SWAGSettings,
    clip_norm: float,
) -> AdaptedVisionTransformer:
    """Returns the network with the moments of `settings.steps` steps of SGD from `source`.

    objective: of `source`, whose adapters and heads change in place. clip_norm: of the gradient.
    """
    parameters = [parameter for _, parameter in source.adapter_parameters()]
    optimiser = torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=MOMENTUM)
    steps = itertools.islice(_endless(batches), settings.steps)
    moments = Moments()
    source.train()
    for step, (pixels, labels) in enumerate(track(steps, "SGD", "steps", settings.steps)):
        device = parameters[0].device
        images, targets = pixels.to(device), labels.to(device)
        optimiser.zero_grad(set_to_none=True)
        draw = objective.draw(batches.seed, step, 0)
        loss = objective.loss(source, images, targets, draw) / objective.weight(targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimiser.step()
        if (step + 1) * settings.snapshots // settings.steps > moments.count:
            moments.add(source.adapter_parameters())
    return normal_network(source.eval(), moments, settings)


@torch.no_grad()
def normal_network(
    source: AdaptedVisionTransformer, moments: Moments, settings: SWAGSettings
) -> AdaptedVisionTransformer:
    """Returns the network whose weights have the means and variances of `moments`."""
    network = with_method(source, settings)
    for name, variance in moments.variances.items():
        network.get_parameter(name).copy_(moments.first[name])
        network.get_parameter(f"{name}_root").copy_(variance.sqrt().sqrt())
    return network


def _endless(batches: LoadedBatches) -> Iterable[tuple[Tensor, Tensor]]:
    return itertools.chain.from_iterable(batches.epoch(epoch, 0) for epoch in itertools.count())
