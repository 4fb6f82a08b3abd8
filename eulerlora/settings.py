"""Settings of adapters, backbone, runtime and draws; recipes and checkpoints share them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from eulerlora.validation import Settings

Mode = Literal["det", "stoch"]
Auto = Literal["auto"]
AUTO: Auto = "auto"
"""Instead of a number of samples: adaptive sampling (`eulerlora.adaptive_sampling`)."""

DEFAULT_SAMPLES = 4

Sampler = Literal["independent", "balanced"]
SAMPLERS: tuple[Sampler, ...] = ("independent", "balanced")
ColourConstancy = Literal["none", "shades-of-gray"]
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
PositiveInt = Annotated[int, Field(ge=1)]


class AdapterSettings(Settings):
    """Number, rank and sampling law of adapters.

    adapters: number of independent adapters A, each with its own classification head.
    rank: number of rank-one directions r of each adapter at each projection.
    min_rank: least number of active directions Kmin, 1 to rank.
    steps: number of Euler steps T at the output projection.
    scale: sigma, the scale of the fluctuation at the output projection; 0 removes it.
    """

    adapters: Annotated[PositiveInt, Field(le=1024)] = 2
    rank: Annotated[PositiveInt, Field(le=4096)] = 20
    min_rank: PositiveInt = 10
    steps: Annotated[PositiveInt, Field(le=1000)] = 2
    scale: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="after")
    def _min_rank_within_rank(self) -> Self:
        if self.min_rank > self.rank:
            raise ValueError(f"expected min_rank of at most rank={self.rank}, got {self.min_rank}")
        return self


class BackboneSettings(Settings):
    """The shape of a `torchvision.models.VisionTransformer`; sizes in pixels or features.

    stem: how patches are embedded: `patch` is one convolution with the stride of a patch;
    `convolution` is a sequence of 3x3 convolutions of stride 2 (Xiao et al., "Early Convolutions
    Help Transformers See Better", NeurIPS 2021), for a patch size that is a power of two.
    """

    image_size: Annotated[PositiveInt, Field(le=4096)] = 224
    patch_size: PositiveInt = 32
    layers: Annotated[PositiveInt, Field(le=256)] = 12
    heads: PositiveInt = 12
    width: Annotated[PositiveInt, Field(le=16_384)] = 768
    mlp_width: Annotated[PositiveInt, Field(le=65_536)] = 3072
    stem: Literal["patch", "convolution"] = "patch"

    @model_validator(mode="after")
    def _halvings_reach_the_patch_size(self) -> Self:
        if self.stem == "convolution" and 2**self.stem_layers != self.patch_size:
            raise ValueError(
                "expected patch_size to be a power of two from 2 with stem=convolution, "
                f"got {self.patch_size}"
            )
        return self

    @model_validator(mode="after")
    def _divisible(self) -> Self:
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
    def tokens(self) -> int:
        """Number of patches of an image, plus one for the class token."""
        return int((self.image_size // self.patch_size) ** 2) + 1


class RuntimeSettings(Settings):
    """How a network is run; the settings change results by rounding only.

    precision: data type of the matrix products and the activations between them.
    compiler: a backend of torch.compile, such as "inductor", which uses CUDA graphs on a CUDA
    device; the first batch of each size is then slow. None disables compilation.
    """

    precision: Precision = "float32"
    compiler: str | None = None


DEFAULT_RUNTIME = RuntimeSettings()
"""Float32, not compiled."""


class Draw(Settings):
    """Mode, samples and seed of the prediction for one image.

    samples: S, trajectories per adapter; 1 in mode `det`.
    seed: 0 <= seed < 2**32, the seeds that torch's CPU generator distinguishes.
    sampler: draws the samples of an adapter independently of each other or balanced against each
    other; each sample alone has the same law. Mode `det` draws nothing.
    first: number of samples that earlier rounds ran; only the samples after them are run. Balanced
    samples continue the draw of the earlier rounds; independent ones are drawn anew.
    """

    mode: Mode = "det"
    samples: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    sampler: Sampler = "independent"
    first: Annotated[int, Field(ge=0)] = 0

    @property
    def count(self) -> int:
        """Number of samples of each adapter that are run."""
        return self.samples - self.first

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.count < 1:
            raise ValueError(f"expected first below samples={self.samples}, got {self.first}")
        return self

    @model_validator(mode="after")
    def _det_has_one_sample(self) -> Self:
        if self.mode == "det" and self.samples != 1:
            raise ValueError(f"samples: expected 1 in mode det, got {self.samples}")
        return self
