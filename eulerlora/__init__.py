"""EulerLoRA: image classification with uncertainty from sampled low-rank adapters."""

from eulerlora.errors import (
    CheckpointError,
    DataError,
    EulerLoRAError,
    ImageError,
    NonFiniteError,
    SettingsError,
    StorageError,
)
from eulerlora.model import EulerLoRA, Prediction

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
