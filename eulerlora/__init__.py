"""EulerLoRA: image classification with uncertainty from sampled low-rank adapters.

The model is imported when it is first asked for: torch takes seconds, which a program that only
prints its help, or has to heed a signal, should not wait for.
"""

from typing import TYPE_CHECKING

from eulerlora.errors import (
    CheckpointError,
    DataError,
    EulerLoRAError,
    ImageError,
    NonFiniteError,
    SettingsError,
    StorageError,
)

if TYPE_CHECKING:
    from eulerlora.model import EulerLoRA
    from eulerlora.prediction import Prediction

__all__ = [
    "CheckpointError",
    "DataError",
    "EulerLoRA",
    "EulerLoRAError",
    "ImageError",
    "NonFiniteError",
    "Prediction",
    "SettingsError",
    "StorageError",
]


def __getattr__(name: str) -> object:
    """The public names of the model (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eulerlora import model  # noqa: PLC0415

    return getattr(model, name)
