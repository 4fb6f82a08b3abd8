"""The schema of `config.json`, the description of a checkpoint."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from eulerlora.settings import (
    AdapterSettings,
    Auto,
    BackboneSettings,
    Mode,
    PositiveInt,
    Sampler,
)
from eulerlora.validation import Settings

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Provenance = dict[str, Any]


class ClassName(Settings):
    """A class of the label set: its short name and its description."""

    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str, Field(min_length=1)]


class BackboneConfig(Settings):
    """The frozen backbone that the adapters were trained on.

    published: the name of torchvision's weights; None if they are in `backbone.safetensors`.
    sha256: digest of the weights (`eulerlora.safetensor_files.tensors_sha256`).
    provenance: the origin of weights that are not published.
    """

    settings: BackboneSettings
    published: str | None
    sha256: Sha256
    provenance: Provenance = {}


class AdapterConfig(Settings):
    """The settings of the adapters and the digest of the tensors in `adapters.safetensors`."""

    settings: AdapterSettings
    sha256: Sha256


class Preprocessing(Settings):
    """How an image becomes the network's input; only `size` varies so far."""

    scale: Literal["1/255"] = "1/255"
    resize: Literal["squash"] = "squash"
    interpolation: Literal["bilinear-antialias"] = "bilinear-antialias"
    size: PositiveInt


class Threshold(Settings):
    """The OOD threshold: an image with an MSP below `msp` is flagged as out of distribution.

    samples: per adapter, or `auto`. kept: fraction of the `images` in-distribution images of `data`
    with an MSP of at least `msp`.
    """

    mode: Mode
    samples: PositiveInt | Auto
    msp: Annotated[float, Field(ge=0, le=1)]
    kept: Annotated[float, Field(ge=0, le=1)]
    images: PositiveInt
    data: str


class CheckpointConfig(Settings):
    """The content of `config.json`.

    sampler: the default sampler of an image; the thresholds of `stoch` are valid for it only.
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
        names = [label.name for label in self.classes]
        if len(set(names)) != len(names):
            raise ValueError("two classes have the same name")
        keys = [(threshold.mode, threshold.samples) for threshold in self.thresholds]
        if len(set(keys)) != len(keys):
            raise ValueError("two thresholds are for the same mode and samples")
        if self.preprocessing.size != self.backbone.settings.image_size:
            raise ValueError("preprocessing.size differs from the backbone's image_size")
        return self

    def threshold(
        self, mode: Mode, samples: int | Auto, sampler: Sampler | None = None
    ) -> float | None:
        """Returns the OOD threshold on the MSP; None if these options were not calibrated.

        sampler: of `stoch`; None for the checkpoint's sampler.
        """
        if mode == "stoch" and sampler not in (None, self.sampler):
            return None
        for threshold in self.thresholds:
            if (threshold.mode, threshold.samples) == (mode, samples):
                return threshold.msp
        return None

    def convergence_threshold(self, sampler: Sampler | None = None) -> float | None:
        """Returns the threshold for the convergence of adaptive sampling, or None.

        It is the threshold of the largest calibrated number of samples: the threshold of `auto` is
        calibrated on converged images and so cannot decide their convergence. sampler: as in
        `threshold`.
        """
        counts = [
            threshold.samples
            for threshold in self.thresholds
            if threshold.mode == "stoch" and isinstance(threshold.samples, int)
        ]
        return self.threshold("stoch", max(counts), sampler) if counts else None
