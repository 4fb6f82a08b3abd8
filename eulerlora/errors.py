"""The errors that a user of EulerLoRA can meet.

EulerLoRAError
├── SettingsError      a setting has a value that is not allowed
├── OutputPathError    an output path cannot be used
├── ImageError         an image cannot be opened or converted to RGB
├── CheckpointError    a checkpoint is missing, damaged or made for another model
├── DataError          a data set is missing, incomplete or has unexpected labels
├── NonFiniteError     a computation returned NaN or infinity
├── HubError           a repository of the Hugging Face Hub cannot be read or written
└── StorageError       a disk is full or fails

Every message is one line that states what was expected and what was given.
"""

from pathlib import Path
from typing import ClassVar


class EulerLoRAError(Exception):
    """Base of all errors that the user's input or machine causes."""

    exit_status: ClassVar[int] = 1  # of the `eulerlora` program


class SettingsError(EulerLoRAError):
    """A setting has a value that is not allowed."""


class OutputPathError(EulerLoRAError):
    """An output path cannot be used."""

    exit_status = 2


class ImageError(EulerLoRAError):
    """An image cannot be opened or converted to RGB."""


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


class StorageError(EulerLoRAError):
    """A disk is full or fails; files written before are intact.

    reason: such as "disk full (no space left on device)". resume_hint: how to continue.
    """

    def __init__(self, path: Path, reason: str, resume_hint: str = "") -> None:
        hint = f"; {resume_hint}" if resume_hint else ""
        super().__init__(f"{reason} while writing {path}{hint}")
        self.path = path
        self.reason = reason
