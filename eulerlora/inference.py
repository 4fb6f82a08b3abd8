"""A model on a device: runs prepared inputs with the options of its checkpoint.

The service holds one for each checkpoint and prepares the inputs in decoders; `eulerlora.model`
reads checkpoints and pictures.
"""

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.nn.network import FEATURES_PER_WIDTH, AdaptedVisionTransformer, predict_images
from eulerlora.nn.runtime import Runtime, predict_adaptively
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.ood_scores import FeatureDistance
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.sampling import AUTO, Auto, Mode, Options, Precision, Sampler, Views

_MAX_BATCH_IMAGES = 32
"""Limits the memory of a batch on a device without a limit of rows per pass."""


class InferenceModel:
    """A network on a device, with the config of its checkpoint.

    Attributes:
        classes: The class names, in the order of the probabilities.
        precision: Of the matrix products.
        precision_reason: Why it was chosen.
    """

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        config: CheckpointConfig,
        revision: str,
        feature_distance: FeatureDistance | None,
        device: torch.device,
        runtime: RuntimeSettings,
        precision_reason: str,
    ) -> None:
        self.runtime: Runtime = Runtime(network, device, runtime)
        self.config = config.in_precision(runtime.precision)
        self.revision = revision
        self.feature_distance = feature_distance
        self.device = device
        self.precision: Precision = runtime.precision
        self.precision_reason = precision_reason
        self.classes: tuple[str, ...] = config.class_names

    @property
    def network(self) -> AdaptedVisionTransformer:
        return self.runtime.network

    def options(
        self,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        sampler: Sampler | None = None,
        views: Views | None = None,
    ) -> Options:
        """Options of a prediction, as `CheckpointConfig.options`."""
        return self.config.options(mode, samples, sampler, views, self.precision)

    def run(
        self,
        inputs: Iterable[tuple[Tensor, int]],
        options: Sequence[Options],
        batch_size: int | None = None,
        rule: StoppingRule | None = None,
    ) -> list[Trajectories]:
        """Runs the same images with each of `options`, of which there is at least one.

        `inputs` has the network's input (3, size, size) of each image, in [0, 1], and its seed; it
        is read batch by batch. `batch_size` of None is as many as run in one pass, up to
        `_MAX_BATCH_IMAGES`; `rule` of None is `CheckpointConfig.stopping_rule`.

        Raises SettingsError for a seed or an option out of range.
        """
        for choice in options:
            Draw.of(choice)  # raises before an image is read
        rule = rule or self.config.stopping_rule(self.precision)
        size = batch_size or max(self._images_per_pass(choice) for choice in options)
        parts: list[list[Trajectories]] = [[] for _ in options]
        remaining = iter(inputs)
        while batch := list(itertools.islice(remaining, size)):
            pixels = torch.stack([image for image, _ in batch]).to(self.device)
            seeds = [seed for _, seed in batch]
            for choice, of_choice in zip(options, parts, strict=True):
                step = batch_size or self._images_per_pass(choice)
                for start in range(0, len(seeds), step):
                    part = slice(start, start + step)
                    draws = [Draw.of(choice, seed) for seed in seeds[part]]
                    of_choice.extend(self._batch(pixels[part], draws, choice, rule))
        return [
            Trajectories.cat(of_choice) if of_choice else self._empty(choice)
            for choice, of_choice in zip(options, parts, strict=True)
        ]

    def _batch(
        self, pixels: Tensor, draws: list[Draw], options: Options, rule: StoppingRule
    ) -> list[Trajectories]:
        network, temperatures = self.runtime, self.config.temperatures
        if options.samples != AUTO:
            return predict_images(network, pixels, draws, temperatures)
        distance = self.feature_distance
        return predict_adaptively(network, pixels, draws, rule, temperatures, distance)

    def _images_per_pass(self, options: Options) -> int:
        rows = self.network.settings.adapters * Draw.of(options).count
        return max(1, min(_MAX_BATCH_IMAGES, self.runtime.max_rows_per_pass // rows))

    def _empty(self, options: Options) -> Trajectories:
        shape = (0, self.network.settings.adapters, Draw.of(options).count)
        width = FEATURES_PER_WIDTH * self.config.backbone.settings.width
        return Trajectories.of(
            torch.empty(*shape, len(self.classes), dtype=torch.float64),
            torch.empty(*shape, width),
            torch.empty(shape, dtype=torch.int64),
        )
