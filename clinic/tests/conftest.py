"""Fixtures that the tests of the core have too."""

from tests.conftest import (
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
from tests.eulerlora_client.conftest import live, server
from tests.service.conftest import bombs, model, photo, png
from tests.training.conftest import image_folder, recipe_file

__all__ = [
    "anyio_backend", "bombs", "checkpoint_copy", "checkpoint_folder", "image_folder", "live",
    "make_backbone", "make_config", "make_network", "model", "one_thread", "photo", "png",
    "real_data", "recipe_file", "server", "temporary_cache", "tiny_published",
]  # fmt: skip
