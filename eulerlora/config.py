"""What a checkpoint says of itself: the contents of its `config.json`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import (
    AdapterSettings,
    Auto,
    BackboneSettings,
    Mode,
    PositiveInt,
    Sampler,
    Settings,
)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Provenance = dict[str, Any]


class ClassName(Settings):
    """One class of the label set: its short name, and a description for people."""

    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str, Field(min_length=1)]


class BackboneConfig(Settings):
    """Which frozen backbone the adapters were trained on.

    published: the name of torchvision's weights; None where `backbone.safetensors` holds them.
    sha256: digest of the weights (`eulerlora.safetensor_files.tensors_sha256`).
    provenance: where weights that are not published came from.
    """

    settings: BackboneSettings
    published: str | None
    sha256: Sha256
    provenance: Provenance = {}


class AdapterConfig(Settings):
    """The adapters' settings, and the digest of `adapters.safetensors`' tensors."""

    settings: AdapterSettings
    sha256: Sha256


class Preprocessing(Settings):
    """How a picture becomes the network's input; one way so far, written out for readers."""

    scale: Literal["1/255"] = "1/255"
    resize: Literal["squash"] = "squash"
    interpolation: Literal["bilinear-antialias"] = "bilinear-antialias"
    size: PositiveInt


class Threshold(Settings):
    """An image whose MSP is below `msp` is flagged as out of distribution.

    samples: per adapter; `auto` for as many as each image takes.
    kept: share of the `images` in-distribution images of `data` that the threshold keeps.
    """

    mode: Mode
    samples: PositiveInt | Auto
    msp: Annotated[float, Field(ge=0, le=1)]
    kept: Annotated[float, Field(ge=0, le=1)]
    images: PositiveInt
    data: str


class CheckpointConfig(Settings):
    """All of `config.json`.

    sampler: how the samples of an image are drawn unless another is asked for; the thresholds of
    `stoch` are for this one.
    """

    format_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    backbone: BackboneConfig
    adapters: AdapterConfig
    classes: Annotated[tuple[ClassName, ...], Field(min_length=2)]
    preprocessing: Preprocessing
    sampler: Sampler = "independent"
    thresholds: tuple[Threshold, ...] = ()
    provenance: Provenance

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [each.name for each in self.classes]
        if len(set(names)) != len(names):
            raise ValueError("two classes have the same name")
        keys = [(each.mode, each.samples) for each in self.thresholds]
        if len(set(keys)) != len(keys):
            raise ValueError("two thresholds are for the same mode and samples")
        if self.preprocessing.size != self.backbone.settings.image_size:
            raise ValueError("preprocessing.size differs from the backbone's image_size")
        return self

    def threshold(
        self, mode: Mode, samples: int | Auto, sampler: Sampler | None = None
    ) -> float | None:
        """The OOD threshold on MSP, or None where none was calibrated for this question.

        sampler: of `stoch`; None takes the checkpoint's.
        """
        if mode == "stoch" and sampler not in (None, self.sampler):
            return None
        for each in self.thresholds:
            if (each.mode, each.samples) == (mode, samples):
                return each.msp
        return None

    def convergence_threshold(self, sampler: Sampler | None = None) -> float | None:
        """What an MSP is held against to tell whether its image is settled, or None.

        That of `auto` cannot be known before images are settled, so that this is that of the
        largest number of samples that has one. sampler: as in `threshold`.
        """
        counts = [
            each.samples
            for each in self.thresholds
            if each.mode == "stoch" and isinstance(each.samples, int)
        ]
        return self.threshold("stoch", max(counts), sampler) if counts else None
