"""Errors of the client. Those of a request are in `eulerlora_client.contract.problems`.

ClientError
├── SettingsError     a setting, a policy file, a URL or a key is invalid
├── ImageFilesError   there is no image file, or a folder cannot be listed
├── OutputPathError   an output path cannot be used
├── StorageError      a disk is full or fails
├── RowsError         a file of triage rows is invalid
├── PolicyError       a policy does not apply to a model
└── OutcomesError     a file of confirmed outcomes is invalid

A message is one line: what was expected, and what was given.
"""

from pathlib import Path
from typing import ClassVar


class ClientError(Exception):
    """Base of all errors that the user's input or machine causes.

    exit_status: of the `eulerlora` program, 1 for failed work and 2 for wrong usage.
    """

    exit_status: ClassVar[int] = 1


class SettingsError(ClientError):
    """A setting, a policy file, a URL or a key is invalid."""


class ImageFilesError(ClientError):
    """There is no image file, or a folder cannot be listed."""


class OutputPathError(ClientError):
    """An output path cannot be used."""

    exit_status = 2


class StorageError(ClientError):
    """A disk is full or fails; earlier content of the file is intact."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason} while writing {path}")
        self.path = path
        self.reason = reason


class RowsError(ClientError):
    """A file of triage rows, written by `eulerlora triage --json-lines`, is invalid."""


class PolicyError(ClientError):
    """A policy does not apply to a model: it names classes that the model does not have."""


class OutcomesError(ClientError):
    """A file of confirmed outcomes is invalid, or has no lesion of the tested class."""
