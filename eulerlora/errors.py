"""The errors that a user of EulerLoRA can meet.

EulerLoRAError
├── SettingsError      a setting has a value that is not allowed
├── OutputPathError    an output path cannot be used
├── StorageError       a disk is full or fails
├── ImageError         an image cannot be opened or converted to RGB
├── CheckpointError    a checkpoint is missing, damaged or made for another model
├── DataError          a data set is missing, incomplete or has unexpected labels
├── NonFiniteError     a computation returned NaN or infinity
└── HubError           a repository of the Hugging Face Hub cannot be read or written

The first four are those of `eulerlora_client.errors`. Every message is one line that states what
was expected and what was given.
"""

from pathlib import Path

from eulerlora_client.errors import EulerLoRAError, OutputPathError, SettingsError, StorageError

__all__ = [
    "CheckpointError",
    "DataError",
    "EulerLoRAError",
    "HubError",
    "ImageError",
    "NonFiniteError",
    "OutputPathError",
    "SettingsError",
    "StorageError",
]


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
