"""`EulerLoRA`: a checkpoint on a device, ready to predict."""

import re
import sys
from collections.abc import Iterable, Iterator, Sized
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint
from eulerlora.images.decode import RgbImage
from eulerlora.images.files import Images, image_files, rgb_images
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.inference import InferenceModel
from eulerlora.precision import REQUESTED, decide_precision
from eulerlora.settings import DEFAULT_RUNTIME, RuntimeSettings
from eulerlora_contract.answers import PredictionWarning
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import (
    Auto,
    Mode,
    PrecisionChoice,
    RuntimeChoice,
    Sampler,
    Views,
)


class EulerLoRA(InferenceModel):
    """A checkpoint on a device, ready to predict."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        runtime: RuntimeSettings = DEFAULT_RUNTIME,
        precision_reason: str = REQUESTED,
    ) -> None:
        super().__init__(
            checkpoint.network,
            checkpoint.config,
            checkpoint.revision,
            checkpoint.feature_distance,
            device,
            runtime,
            precision_reason,
        )
        self.folder: Path | None = checkpoint.folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
        runtime: RuntimeChoice = "torch",
    ) -> Self:
        """Loads a checkpoint folder to a device.

        Precision, compiler and runtime change results by rounding only.

        Args:
            folder: With `config.json`, weights and known answer.
            device: A torch device, or `auto` for CUDA if available and the CPU otherwise.
            precision: As in `RuntimeSettings`; `auto` is decided by `decide_precision`.
            compiler: As in `RuntimeSettings`.
            runtime: As in `RuntimeSettings`; `openvino` needs the extra `openvino`.

        Raises:
            CheckpointError: If the checkpoint is not intact.
            SettingsError: If the runtime cannot run the network.
        """
        return cls.of(load_checkpoint(Path(folder)), device, precision, compiler, runtime)

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
        runtime: RuntimeChoice = "torch",
    ) -> Self:
        """Puts a loaded checkpoint on a device; other arguments as in `load`.

        Its network becomes that of the model: load the checkpoint again for another one.
        """
        chosen = choose_device(device)
        decision = decide_precision(precision, checkpoint.config, chosen)
        settings = RuntimeSettings(precision=decision.precision, compiler=compiler, runtime=runtime)
        return cls(checkpoint, chosen, settings, decision.reason)

    @classmethod
    def default(
        cls,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
        runtime: RuntimeChoice = "torch",
    ) -> Self:
        """Loads the packaged checkpoint; arguments as in `load`."""
        return cls.load(DEFAULT_CHECKPOINT, device, precision, compiler, runtime)

    @classmethod
    def from_pretrained(
        cls,
        repository: str,
        revision: str | None = None,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
        runtime: RuntimeChoice = "torch",
    ) -> Self:
        """Loads a repository of the Hugging Face Hub; needs the extra `hub`.

        Args:
            repository: ORGANISATION/NAME, or a checkpoint folder.
            revision: A branch, a tag or a commit.
            device: As in `load`.
            precision: As in `load`.
            compiler: As in `load`.
            runtime: As in `load`.

        Raises:
            HubError: For a repository that cannot be downloaded.
            CheckpointError: If the checkpoint is not intact.
        """
        from eulerlora.checkpoint.hub import Repository, download  # noqa: PLC0415 - rarely used

        folder = Path(repository)
        if not folder.is_dir():
            folder = download(Repository(repository, revision))
        return cls.load(folder, device, precision, compiler, runtime)

    def push_to_hub(self, repository: str, private: bool | None = None, **options: Any) -> str:
        """Uploads the model's checkpoint to a repository of the Hugging Face Hub.

        It replaces an earlier checkpoint; other files of the repository stay.

        Args:
            repository: ORGANISATION/NAME, created if it does not exist.
            private: Of a new repository.
            options: Of huggingface_hub's `HfApi.upload_folder`, such as `commit_message`, and
                `token`.

        Returns:
            The URL of the commit.

        Raises:
            HubError: For another form of name, and if the Hub refuses the upload or cannot be
                reached.
            SettingsError: For a model without a folder.
        """
        from eulerlora.checkpoint.hub import Repository, upload  # noqa: PLC0415 - rarely used

        if self.folder is None:
            raise SettingsError("expected a model that was loaded from a folder")
        return upload(self.folder, Repository(repository), private, **options)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.config.name!r}, revision={self.revision[:19]!r}, "
            f"classes={self.classes}, adapters={self.network.settings.adapters}, "
            f"device={str(self.device)!r}, precision={self.precision!r}, "
            f"runtime={self.runtime.name!r})"
        )

    def predict(
        self,
        images: Images,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        coverage: float | None = None,
        views: Views | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Class probabilities and uncertainty of every image.

        Args:
            images: PIL images, paths or NumPy arrays (height, width, 3), uint8 in RGB, or one of
                them; a path may be a folder or a pattern such as `scans/*.png`, for its sorted
                images; or an array (n, height, width, 3); or a floating-point tensor (n, 3, height,
                width) in [0, 1], without the normalisation of the backbone. Each is read when its
                batch runs. An image that Pillow has opened and not decoded is read as its file; in
                one that it has decoded, damage and the PNG chunk cICP are no longer known.
            mode: `det`, one pass per adapter; or `stoch`, sampled.
            samples: S per adapter, only in mode `stoch`; `auto` takes 1, 2 or 4 of them, until the
                label and flags are settled, for a checkpoint with decision margins; None for
                `DEFAULT_SAMPLES`.
            seed: Of the draws of every image; None derives one from the image and the model's
                weights and sampler.
            batch_size: Images per batch, at least 1; None for as many as run in one pass, up to 32.
            sampler: How the samples of an image are drawn; None for the checkpoint's sampler.
            coverage: Adds `prediction_sets` with this probability, such as 0.9, or a warning if the
                checkpoint is not calibrated for it with these options.
            views: Number of views of an image that its trajectories share between them, 1, 2, 4 or
                8 (`eulerlora.nn.rows`); in mode `det` each adapter sees all of them. None for the
                checkpoint's in mode `stoch`, and 1 in mode `det`; other numbers are not calibrated.
            progress: Show a bar on stderr if it is a terminal.

        Raises:
            ImageError: For an unusable image and a tensor with other values.
            ImageFilesError: For a folder or a pattern without images.
            SettingsError: For an option out of range.
            NonFiniteError: If the network returns NaN or infinity.
        """
        if batch_size is not None and batch_size < 1:
            raise SettingsError(f"batch_size: expected at least 1, got {batch_size}")
        if coverage is not None and not 0 < coverage < 1:
            raise SettingsError(f"coverage: expected a number between 0 and 1, got {coverage}")
        options = self.options(mode, samples, sampler, views)
        digest = self.config.sampling_digest
        conversions: list[PredictionWarning] = []

        def inputs(pictures: Iterable[RgbImage]) -> Iterator[tuple[Tensor, int]]:
            for index, image in enumerate(pictures):
                for warning in image.warnings:
                    message = f"image {index}: {warning.message}"
                    conversions.append(PredictionWarning(code=warning.code, message=message))
                of_image = seed
                if of_image is None:
                    of_image = content_seed(image.pixels, digest) if mode == "stoch" else 0
                yield network_input(image.pixels, self.config.preprocessing), of_image

        if isinstance(images, Path | str):
            images = image_files(images)
        elif isinstance(images, Image.Image) or (
            isinstance(images, np.ndarray) and images.ndim == 3
        ):
            images = [images]
        elif isinstance(images, list | tuple):
            given = ([*image_files(x)] if isinstance(x, Path | str) else [x] for x in images)
            images = [*chain.from_iterable(given)]
        files: tuple[Path, ...] = ()
        if isinstance(images, list | tuple) and all(isinstance(one, Path | str) for one in images):
            files = tuple(map(Path, images))
        with click.progressbar(
            rgb_images(images, self.config.preprocessing.input_side),
            length=len(images) if isinstance(images, Sized) else None,
            hidden=not (progress and sys.stderr.isatty()),
            file=sys.stderr,
        ) as pictures:
            (trajectories,) = self.run(inputs(pictures), [options], batch_size)
        prediction = self.answer(trajectories, options, coverage)
        return replace(prediction, warnings=(*prediction.warnings, *conversions), files=files)


def choose_device(name: str) -> torch.device:
    """The named torch device; `auto` is CUDA if available and the CPU otherwise.

    Raises:
        SettingsError: For other names, and for a device that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"(cpu|cuda)(:\d+)?", name) is None:
        raise SettingsError(f"expected the device auto, cpu, cuda or cuda:N, got {name!r}")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} is not available on this machine") from error
    return device
