"""Fixtures that the tests of the core have too, and a service with a policy."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from clinic.tests.runs import mel_policy
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from tests.conftest import (
    STOCH,
    anyio_backend,
    checkpoint_copy,
    checkpoint_folder,
    make_backbone,
    make_config,
    make_network,
    one_thread,
    real_data,
    temporary_cache,
    tiny_published,
)
from tests.damaged_checkpoints import edited
from tests.eulerlora_client.conftest import server
from tests.service.conftest import LIVE_BODY_BYTES, bombs, model, photo, png
from tests.service.real_server import run_server
from tests.training.conftest import image_folder, recipe_file

__all__ = [
    "anyio_backend", "bombs", "checkpoint_copy", "checkpoint_folder", "image_folder",
    "make_backbone", "make_config", "make_network", "model", "one_thread", "photo", "png",
    "real_data", "recipe_file", "server", "temporary_cache", "tiny_published",
]  # fmt: skip


@pytest.fixture(scope="session")
def live(model: EulerLoRA) -> Iterator[int]:
    """The loopback port of a real server with a policy for the tiny model.

    It accepts bodies of up to 100,000 bytes.
    """
    bodies = {"max_bytes": LIVE_BODY_BYTES}
    with run_server(app_of(model, policy=mel_policy(), bodies=bodies)) as port:
        yield port


@pytest.fixture
def flags_all(checkpoint_copy: Path) -> Path:
    """The tiny checkpoint, whose threshold marks every image as out of distribution."""
    threshold = {
        "options": asdict(STOCH), "msp": 1.0, "kept": 0.999, "images": 10_000, "data": "home"
    }  # fmt: skip
    edited("config.json", lambda fields: fields.update(thresholds=[threshold]))(checkpoint_copy)
    return checkpoint_copy
