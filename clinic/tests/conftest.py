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
from tests.training.conftest import image_folder, recipe_file

__all__ = [
    "anyio_backend", "checkpoint_copy", "checkpoint_folder", "image_folder", "make_backbone",
    "make_config", "make_network", "one_thread", "real_data", "recipe_file", "temporary_cache",
    "tiny_published",
]  # fmt: skip
