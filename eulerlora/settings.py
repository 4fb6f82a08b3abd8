"""Settings of backbone, input, runtime and draws; recipes and checkpoints share them."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora_contract.sampling import (
    AUTO,
    AUTO_ROUNDS,
    MAX_AUTO_SAMPLES,
    Mode,
    Options,
    Precision,
    RuntimeChoice,
    Sampler,
    Views,
)
from eulerlora_contract.settings import Count, Positive, PositiveInt, Settings, optional, validated

ColourConstancy = Literal["none", "shades-of-gray"]
Activation = Literal["gelu", "gelu-tanh", "quick-gelu", "swiglu"]
_Channels = tuple[float, float, float]
Provenance = dict[str, Any]
"""The origin of weights, as JSON."""


class BackboneSettings(Settings):
    """The shape of a Vision Transformer; sizes in pixels or features.

    The options after `mlp_width` default to torchvision's Vision Transformer.

    Attributes:
        stem: How patches are embedded: `patch` is one convolution with the stride of a patch;
            `convolution` is a sequence of 3x3 convolutions of stride 2 (Xiao et al., "Early
            Convolutions Help Transformers See Better", NeurIPS 2021), for a patch size that is a
            power of two.
        activation: Of the MLP.
        norm_epsilon: Of all layer norms.
        pre_norm: A layer norm before the first block.
        layer_scale: Learned factors of both branches of a block.
        registers: Number of register tokens (Darcet et al., ICLR 2024).
        pooling: The features are those of the class token, or the mean over the patches.
        attention: By dot product, or `l2` by distance (`eulerlora.nn.attention`).
        final_norm: After the last block, applied to the tokens or to the pooled features.
        positions: For another image size, the grid of position embeddings is interpolated with its
            corner points (torchvision) or its cells (transformers) aligned, or also with
            antialiasing (timm, DINOv2 with registers). With `rotary` there are none: queries and
            keys are rotated (DINOv3, `eulerlora.nn.attention`).
    """

    image_size: Annotated[PositiveInt, Field(le=4096)] = 224
    patch_size: PositiveInt = 32
    layers: Annotated[PositiveInt, Field(le=256)] = 12
    heads: PositiveInt = 12
    width: Annotated[PositiveInt, Field(le=16_384)] = 768
    mlp_width: Annotated[PositiveInt, Field(le=65_536)] = 3072
    stem: Literal["patch", "convolution"] = optional("patch")
    activation: Activation = optional("gelu")
    norm_epsilon: float = optional(1e-6, gt=0, le=1)
    pre_norm: bool = optional(False)
    layer_scale: bool = optional(False)
    registers: int = optional(0, ge=0, le=1024)
    pooling: Literal["class", "mean"] = optional("class")
    attention: Literal["dot", "l2"] = optional("dot")
    final_norm: Literal["tokens", "pooled", "none"] = optional("tokens")
    positions: Literal["corners", "cells", "cells-antialias", "rotary"] = optional("corners")

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.stem == "convolution" and 2**self.stem_layers != self.patch_size:
            raise ValueError(
                "expected patch_size to be a power of two from 2 with stem=convolution, "
                f"got {self.patch_size}"
            )
        if self.positions == "rotary" and self.attention != "dot":
            raise ValueError(f"expected attention=dot with rotary positions, got {self.attention}")
        if self.positions == "rotary" and self.width % (4 * self.heads):
            raise ValueError(
                "expected width to be a multiple of 4 x heads with rotary positions, got "
                f"width={self.width} and heads={self.heads}"
            )
        for part, whole in (("patch_size", "image_size"), ("heads", "width")):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(
                    f"expected {whole} to be a multiple of {part}={getattr(self, part)}, "
                    f"got {getattr(self, whole)}"
                )
        return self

    @property
    def stem_layers(self) -> int:
        """Number of 3x3 convolutions of a convolutional stem, each of stride 2."""
        return max(1, self.patch_size.bit_length() - 1)

    @property
    def stem_channels(self) -> list[int]:
        """Output channels of the 3x3 convolutions of a stem, which double up to `width`."""
        if self.stem == "patch":
            return []
        return [max(8, self.width >> left) for left in reversed(range(self.stem_layers))]

    @property
    def tokens(self) -> int:
        """Number of patches of an image and of registers, plus one for the class token."""
        return int((self.image_size // self.patch_size) ** 2) + self.registers + 1


_MAX_SIDE = 8192
"""Of a canvas and of a resized image, in pixels."""
_REGIONS = 6
"""Regions of a canvas that views show: the whole image, the centre, and the four corners."""


class Preprocessing(Settings):
    """How an image becomes the network's input: resize, values in [0, 1], normalisation.

    `adapt` takes it in the words of other libraries too.

    Attributes:
        scale: Of the pixels' levels, always to [0, 1].
        interpolation: The filter of the resize; both are Pillow's, with antialiasing.
        size: Side of the network's input in pixels.
        shorter_side: With `crop`, at least `size`.
        colour_constancy: `shades-of-gray` divides by the estimated light after the resize.
        resize: `squash` resizes the image to a square of `size` pixels; `crop` resizes its shorter
            side to `shorter_side` pixels and crops the central square.
        canvas: Longer and shorter side in pixels, to which an image is resized for views of its
            details: views then show the whole image, squashed, and crops of the canvas at its own
            resolution (`eulerlora.images.preprocess`). None: views show the whole image.
        mean: Of each channel; the network subtracts it last.
        std: Of each channel; the network then divides by it.
    """

    scale: Literal["1/255"] = "1/255"
    resize: Literal["squash", "crop"] = "squash"
    interpolation: Literal["bilinear-antialias", "bicubic-antialias"] = "bilinear-antialias"
    size: PositiveInt
    shorter_side: PositiveInt | None = optional(None, le=_MAX_SIDE)
    canvas: tuple[PositiveInt, PositiveInt] | None = optional(None)
    colour_constancy: ColourConstancy = "none"
    mean: _Channels = optional((0.0, 0.0, 0.0))
    std: tuple[Positive, Positive, Positive] = optional((1.0, 1.0, 1.0))

    @model_validator(mode="after")
    def _crops_from_a_larger_image(self) -> Self:
        if (self.resize == "crop") != (self.shorter_side is not None):
            raise ValueError("expected shorter_side with resize=crop, and only then")
        if self.shorter_side is not None and self.shorter_side < self.size:
            raise ValueError(
                f"expected shorter_side of at least size={self.size}, got {self.shorter_side}"
            )
        return self

    @model_validator(mode="after")
    def _canvas_holds_the_crops(self) -> Self:
        if self.canvas is None:
            return self
        if self.resize == "crop":
            raise ValueError("expected resize=squash with a canvas, got crop")
        longer, shorter = self.canvas
        if not self.size <= shorter <= longer <= _MAX_SIDE:
            raise ValueError(
                f"expected a canvas of a longer and a shorter side from size={self.size} to "
                f"{_MAX_SIDE}, got {longer} and {shorter}"
            )
        return self

    @property
    def input_side(self) -> int:
        """The length in pixels to which the shorter side of an image is resized."""
        return self.shorter_side or (self.size if self.canvas is None else self.canvas[1])

    @property
    def of_whole_images(self) -> "Preprocessing":
        """The same without the views of details."""
        return self.model_copy(update={"canvas": None})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the network's input: (3, size, size), or (regions, 3, size, size)."""
        of_region = (3, self.size, self.size)
        return of_region if self.canvas is None else (_REGIONS, *of_region)

    def at_size(self, size: int) -> "Preprocessing":
        shorter_side = self.shorter_side and round(self.shorter_side * size / self.size)
        return self.model_copy(update={"size": size, "shorter_side": shorter_side})


class RuntimeSettings(Settings):
    """How a network is run; the settings change results by rounding only.

    Attributes:
        precision: Data type of the matrix products and the activations between them.
        compiler: A backend of torch.compile, such as "inductor", which uses CUDA graphs on a CUDA
            device; the first batch of each size is then slow. None disables compilation.
        runtime: The library that runs it; `auto` is the faster one (`eulerlora.precision`).
        graphs: Without a compiler, record the passes of some row counts and replay them
            (`eulerlora.nn.graphs`). None: on a CUDA device only.
    """

    precision: Precision = "float32"
    compiler: str | None = None
    runtime: RuntimeChoice = "torch"
    graphs: bool | None = None


DEFAULT_RUNTIME = RuntimeSettings()
"""Float32 by torch, not compiled."""

Temperatures = Mapping[Mode, float]
"""By which the logits of each mode are divided before the softmax."""
UNSCALED: Temperatures = {"det": 1.0, "stoch": 1.0}


class Draw(Settings):
    """Mode, samples, views and seed of the prediction for one image.

    Attributes:
        samples: S, trajectories per adapter; 1 in mode `det`.
        seed: 0 <= seed < 2**32, the seeds that torch's CPU generator distinguishes.
        sampler: Draws the samples of an adapter independently of each other or balanced against
            each other; each sample alone has the same law. Mode `det` draws nothing.
        first: Number of samples that earlier rounds ran; only the samples after them are run.
        drawn: Number of samples of the whole request, of which those up to `samples` are run; 0 for
            `samples`. Balanced samples do not depend on it.
        views: Number of views of the image that the trajectories share between them
            (`eulerlora.nn.rows`). In mode `det`, an adapter runs once for each view.
    """

    mode: Mode = "det"
    samples: PositiveInt = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    sampler: Sampler = "independent"
    first: Count = 0
    drawn: int = optional(0, ge=0)
    views: Views = optional(1)

    @classmethod
    def of(cls, options: Options, seed: int = 0) -> Self:
        """The draw of one image; with `auto`, that of all samples that may run.

        Raises:
            SettingsError: For a value out of range.
        """
        values = {
            "mode": options.mode,
            "samples": MAX_AUTO_SAMPLES if options.samples == AUTO else options.samples,
            "seed": seed,
            "sampler": options.sampler,
            "views": options.views,
        }
        return validated(cls, values)

    def rounds(self) -> list[Self]:
        """The draws of the rounds of `auto` (`AUTO_ROUNDS`), which make up this one."""
        return [
            self.model_copy(update={"first": first, "samples": samples, "drawn": self.samples})
            for first, samples in itertools.pairwise((0, *AUTO_ROUNDS))
        ]

    @property
    def count(self) -> int:
        """Number of rows of each adapter that are run: samples, or in mode `det` views."""
        return self.views if self.mode == "det" else self.samples - self.first

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.count < 1:
            raise ValueError(f"expected first below samples={self.samples}, got {self.first}")
        if self.mode == "det" and self.samples != 1:
            raise ValueError(f"samples: expected 1 in mode det, got {self.samples}")
        return self
