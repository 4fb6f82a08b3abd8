"""EulerLoRA: image classification with uncertainty from sampled low-rank adapters.

The names of `_IMPORTED` are imported on first access: they import torch, which takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from eulerlora_contract import __version__
from eulerlora_contract.errors import (
    CheckpointError,
    DataError,
    EulerLoRAError,
    HubError,
    ImageError,
    NonFiniteError,
    OutputPathError,
    SettingsError,
    StorageError,
)

if TYPE_CHECKING:
    from eulerlora.answer import Predictions
    from eulerlora.classifier import AdaptedClassifier, adapt, trajectory_loss
    from eulerlora.model import EulerLoRA
    from eulerlora.scores.uncertainty import Uncertainty, summarise
    from eulerlora.settings import Preprocessing

__all__ = [
    "AdaptedClassifier",
    "CheckpointError",
    "DataError",
    "EulerLoRA",
    "EulerLoRAError",
    "HubError",
    "ImageError",
    "NonFiniteError",
    "OutputPathError",
    "Predictions",
    "Preprocessing",
    "SettingsError",
    "StorageError",
    "Uncertainty",
    "__version__",
    "adapt",
    "summarise",
    "trajectory_loss",
]
_IMPORTED = {
    "AdaptedClassifier": "classifier",
    "EulerLoRA": "model",
    "Predictions": "answer",
    "Preprocessing": "settings",
    "Uncertainty": "scores.uncertainty",
    "adapt": "classifier",
    "summarise": "scores.uncertainty",
    "trajectory_loss": "classifier",
}
"""Modules of the names that are imported on first access."""


def __getattr__(name: str) -> object:
    if name not in _IMPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IMPORTED[name]}"), name)


def __dir__() -> list[str]:
    return __all__
