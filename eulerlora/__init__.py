"""EulerLoRA: image classification with uncertainty from sampled low-rank adapters.

`EulerLoRA` and `Predictions` are imported on first access: they import torch, which takes seconds.
"""

from typing import TYPE_CHECKING

from eulerlora.errors import (
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
from eulerlora_client import __version__

if TYPE_CHECKING:
    from eulerlora.model import EulerLoRA
    from eulerlora.prediction.answer import Predictions

__all__ = [
    "CheckpointError",
    "DataError",
    "EulerLoRA",
    "EulerLoRAError",
    "HubError",
    "ImageError",
    "NonFiniteError",
    "OutputPathError",
    "Predictions",
    "SettingsError",
    "StorageError",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Imports the names of the model on first access (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eulerlora import model  # noqa: PLC0415

    return getattr(model, name)


def __dir__() -> list[str]:
    return __all__
