"""CIFAR-10, CIFAR-100 and SVHN, as torchvision reads and downloads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets.utils import check_integrity

from eulerlora.errors import DataError

Kind = Literal["cifar10", "cifar100", "svhn"]
Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")

READERS = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "svhn": datasets.SVHN}
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class TorchvisionPart:
    """One part of a data set. pixels: (n, 3, 32, 32) uint8. labels: n indices of `classes`."""

    classes: Sequence[str]
    pixels: Tensor
    labels: Sequence[int]


def read_torchvision_part(kind: Kind, part: Part, folder: Path) -> TorchvisionPart:
    """The part from the files in `folder`; they are downloaded where they are not there.

    Raises DataError, with the URL and the folder, where that cannot be done.
    """
    try:
        found = _open(kind, part, folder, download=False)
    except RuntimeError:  # torchvision: missing, or not the published bytes
        try:
            found = _open(kind, part, folder, download=True)
        except (OSError, RuntimeError, HTTPException) as error:
            raise DataError(
                f"{kind} is not whole in {folder} and cannot be downloaded ({error}); "
                f"{_advice(kind, part, folder)}"
            ) from error
    if kind == "svhn":
        return TorchvisionPart(DIGITS, _tensor(found.data), found.labels.tolist())
    return TorchvisionPart(
        tuple(found.classes), _tensor(found.data.transpose(0, 3, 1, 2)), found.targets
    )


def absent_part(kind: Kind, part: Part, folder: Path) -> str | None:
    """How to get a part that is not whole in `folder`; None if it is, or its archive is."""
    if kind != "svhn":
        reader = READERS[kind]
        if check_integrity(folder / reader.filename, reader.tgz_md5):
            return None
    try:
        _open(kind, part, folder, download=False)
    except RuntimeError:
        return f"{kind}: {_advice(kind, part, folder)}"
    return None


def _advice(kind: Kind, part: Part, folder: Path) -> str:
    return f"fetch {_url(kind, part)} and put the file into {folder}"


def _open(kind: Kind, part: Part, folder: Path, download: bool) -> Any:
    if kind == "svhn":
        return datasets.SVHN(folder, split=part, download=download)
    return READERS[kind](folder, train=part == "train", download=download)


def _url(kind: Kind, part: Part) -> str:
    url: str = datasets.SVHN.split_list[part][0] if kind == "svhn" else READERS[kind].url
    return url


def _tensor(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """pixels: (n, 3, height, width) uint8 in any order of memory."""
    return torch.from_numpy(np.ascontiguousarray(pixels))
