"""The errors a user of EulerLoRA can meet.

EulerLoRAError
├── SettingsError      a setting has a value the method does not allow
├── ImageError         an image cannot be opened or has no defined RGB form
├── CheckpointError    a checkpoint folder is missing, damaged or made for another model
├── DataError          a data set is missing, incomplete or labelled unexpectedly
├── NonFiniteError     a computation gave NaN or an infinity
└── StorageError       a disk is full or fails

Every message is one line that says what was wanted and what came.
"""

from pathlib import Path
from typing import ClassVar


class EulerLoRAError(Exception):
    """Base of every error that is the input's fault rather than a defect of this code."""

    exit_status: ClassVar[int] = 1  # of the `eulerlora` program


class SettingsError(EulerLoRAError):
    """A setting has a value the method does not allow."""


class ImageError(EulerLoRAError):
    """An image cannot be opened or has no defined RGB form."""


class CheckpointError(EulerLoRAError):
    """A checkpoint file is missing, damaged or made for another model."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DataError(EulerLoRAError):
    """A data set is missing, incomplete or labelled unexpectedly."""


class NonFiniteError(EulerLoRAError):
    """A computation gave NaN or an infinity."""


class StorageError(EulerLoRAError):
    """A disk is full or fails; what it held before is intact.

    reason: such as "disk full (no space left on device)". kept: what there is to go on from.
    """

    def __init__(self, path: Path, reason: str, kept: str = "") -> None:
        super().__init__(f"{reason} while writing {path}" + (f"; {kept}" if kept else ""))
        self.path = path
        self.reason = reason
