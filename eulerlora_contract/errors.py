"""The errors that the user's input or machine causes, except those of requests.

EulerLoRAError
├── SettingsError     a setting, a policy file, a URL or a key is invalid
├── OutputPathError   an output path cannot be used
├── StorageError      a disk is full or fails
├── ImageFilesError   there is no image file, or a folder cannot be listed
├── PolicyError       a policy does not apply to a model
├── OutcomesError     a file of confirmed outcomes is invalid
├── ImageError        an image cannot be opened or converted to RGB
│   ├── UnsupportedImageError  its format, or its kind of JPEG, is not read
│   └── ImageSizeError         its file or its dimensions are outside the limits
├── CheckpointError   a checkpoint is missing, damaged or made for another model
├── DataError         a data set is missing, incomplete or has unexpected labels
├── NonFiniteError    a computation returned NaN or infinity
└── HubError          a repository of the Hugging Face Hub cannot be read or written

`eulerlora` raises the last five, `eulerlora_contract.problems` has the errors of a request.
A message is one line: what was expected, and what was given.
"""

from pathlib import Path
from typing import ClassVar


class EulerLoRAError(Exception):
    """Base of all errors that the user's input or machine causes.

    Attributes:
        exit_status: Of the `eulerlora` program, 1 for failed work and 2 for wrong usage.
    """

    exit_status: ClassVar[int] = 1


class SettingsError(EulerLoRAError):
    """A setting, a policy file, a URL or a key is invalid."""


class OutputPathError(EulerLoRAError):
    """An output path cannot be used."""

    exit_status = 2


class StorageError(EulerLoRAError):
    """A disk is full or fails; earlier content of the file is intact.

    Args:
        reason: Such as "disk full (no space left on device)".
        resume_hint: How to continue.
    """

    def __init__(self, path: Path, reason: str, resume_hint: str = "") -> None:
        hint = f"; {resume_hint}" if resume_hint else ""
        super().__init__(f"{reason} while writing {path}{hint}")
        self.path = path
        self.reason = reason


class ImageFilesError(EulerLoRAError):
    """There is no image file, or a folder cannot be listed."""


class PolicyError(EulerLoRAError):
    """A policy does not apply to a model: it names classes that the model does not have."""


class OutcomesError(EulerLoRAError):
    """A file of confirmed outcomes is invalid, or has no lesion of the tested class."""


class ImageError(EulerLoRAError):
    """An image cannot be opened or converted to RGB."""


class UnsupportedImageError(ImageError):
    """A file has a format, or a kind of JPEG, that is not read; it may be a sound image."""


class ImageSizeError(ImageError):
    """An image file, or the dimensions that it states, are outside the limits."""


class CheckpointError(EulerLoRAError):
    """A checkpoint file is missing, damaged or made for another model."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DataError(EulerLoRAError):
    """A data set is missing, incomplete or has unexpected labels."""


class NonFiniteError(EulerLoRAError):
    """A computation returned NaN or infinity."""


class HubError(EulerLoRAError):
    """A repository of the Hugging Face Hub cannot be read or written."""
