"""Tiny checkpoints for the exchange with other libraries."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from eulerlora.checkpoint.files import Checkpoint, load_checkpoint, save_checkpoint
from eulerlora.images.preprocess import network_input
from eulerlora.methods.registry import build_network
from eulerlora.settings import Draw, Preprocessing
from tests.conftest import TINY_ADAPTERS, TINY_BACKBONE, predict_rows

PREPROCESSING = Preprocessing(size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
MakeCheckpoint = Callable[..., Path]


@pytest.fixture
def make_checkpoint(tmp_path: Path, make_backbone, make_network, make_config) -> MakeCheckpoint:
    """(**options of the backbone) -> the folder of a checkpoint with two adapters."""

    def make(**options: object) -> Path:
        backbone = make_backbone(TINY_BACKBONE.model_copy(update=options))
        network = build_network(backbone, TINY_ADAPTERS, 3, PREPROCESSING)
        network.load_state_dict(make_network(backbone=backbone).state_dict())
        folder = tmp_path / "checkpoint"
        save_checkpoint(folder, network.eval(), make_config(network, temperature=1.5), "# tiny\n")
        return folder

    return make


def as_normalised(image: np.ndarray, preprocessing: Preprocessing) -> Tensor:
    """(1, 3, size, size): the input of another library's network from (height, width, 3) uint8."""
    pixels = network_input(torch.from_numpy(image).permute(2, 0, 1).contiguous(), preprocessing)
    mean, std = (
        torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std)
    )
    return ((pixels - mean) / std)[None]


def det_probabilities(folder: Path, images: Tensor) -> Tensor:
    """(n, adapters, classes) of a checkpoint in mode det, in float32."""
    checkpoint: Checkpoint = load_checkpoint(folder)
    config = checkpoint.config
    pixels = torch.stack([network_input(image, config.preprocessing) for image in images])
    log_probabilities = predict_rows(checkpoint.network, pixels, [Draw()] * len(images))
    logits = torch.stack(log_probabilities)  # up to a constant
    return (logits / config.temperature).softmax(dim=-1).float()
