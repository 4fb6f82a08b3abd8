"""The data sets that torchvision reads: CIFAR-10, CIFAR-100 and SVHN."""

from abc import abstractmethod
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from training.data.dataset import PHOTOGRAPHS, DataSet, DataSettings
from training.data.images import ImageParts, LabelledImage, OnBad
from training.data.splits import parts_of

_PublishedPart = Literal["train", "test"]
_PUBLISHED_PARTS: tuple[_PublishedPart, ...] = ("train", "test")
_TINY_IMAGES = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


class TorchvisionSet(DataSet):
    """A data set that torchvision downloads if it is missing.

    torchvision checks the digests of its files, so no image is unusable.
    """

    @abstractmethod
    def opened(self, folder: Path, part: _PublishedPart) -> Any:
        """The data set as torchvision reads it; downloads a file that is missing or damaged."""

    @abstractmethod
    def url(self, part: _PublishedPart) -> str:
        """The address of a part's published file."""

    @abstractmethod
    def arrays(self, opened: Any) -> tuple[npt.NDArray[np.uint8], Sequence[int]]:
        """The images, (n, 3, height, width), and their labels."""

    def names(self, opened: Any) -> Sequence[str]:
        """The names of the classes."""
        names: Sequence[str] = opened.classes
        return names

    def read(self, path: Path, settings: DataSettings, on_bad: OnBad) -> ImageParts:
        """The images of the train and test parts, which are downloaded if missing.

        Raises:
            DataError: With URL and folder, if the download fails.
        """
        published: dict[str, list[LabelledImage]] = {}
        for part in _PUBLISHED_PARTS:
            try:
                opened = self.opened(path, part)
            except (OSError, RuntimeError, HTTPException) as error:
                raise DataError(
                    f"{self.kind} is incomplete in {path} and cannot be downloaded ({error}); "
                    f"download {self.url(part)} to {path}"
                ) from error
            arrays, labels = self.arrays(opened)
            images = torch.from_numpy(np.ascontiguousarray(arrays))  # (n, 3, height, width) uint8
            published[part] = [
                LabelledImage(f"{part}/{index:05}", image, label)
                for index, (image, label) in enumerate(zip(images, labels, strict=True))
            ]
        names = self.names(opened)
        classes = tuple(ClassName(name=name, description=name) for name in names)
        parts = parts_of(published, settings.split)
        return ImageParts(self.named(settings.split), classes, parts)


class Cifar10(TorchvisionSet):
    """CIFAR-10."""

    kind = "cifar10"
    title = "CIFAR-10"
    licence = f"CIFAR-10 ({_TINY_IMAGES})."
    family = PHOTOGRAPHS
    reader = "CIFAR10"

    def opened(self, folder: Path, part: _PublishedPart) -> Any:
        return _torchvision(self.reader)(folder, train=part == "train", download=True)

    def url(self, part: _PublishedPart) -> str:
        return str(_torchvision(self.reader).url)

    def arrays(self, opened: Any) -> tuple[npt.NDArray[np.uint8], Sequence[int]]:
        return opened.data.transpose(0, 3, 1, 2), opened.targets


class Cifar100(Cifar10):
    """CIFAR-100."""

    kind = "cifar100"
    title = "CIFAR-100"
    licence = f"CIFAR-100 ({_TINY_IMAGES})."
    reader = "CIFAR100"


class Svhn(TorchvisionSet):
    """SVHN, the cropped digits."""

    kind = "svhn"
    title = "SVHN"
    licence = (
        "SVHN (Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, "
        "2011), for non-commercial use."
    )
    family = "house numbers"

    def opened(self, folder: Path, part: _PublishedPart) -> Any:
        return _torchvision("SVHN")(folder, split=part, download=True)

    def url(self, part: _PublishedPart) -> str:
        return str(_torchvision("SVHN").split_list[part][0])

    def arrays(self, opened: Any) -> tuple[npt.NDArray[np.uint8], Sequence[int]]:
        return opened.data, opened.labels.tolist()

    def names(self, opened: Any) -> Sequence[str]:
        return "0123456789"


def _torchvision(name: str) -> Any:
    from torchvision import datasets  # noqa: PLC0415 - takes longer than torch's own import

    return getattr(datasets, name)
