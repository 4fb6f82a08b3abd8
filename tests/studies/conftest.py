"""The data and the recipe of the training's tests."""

from tests.training.conftest import image_folder, recipe_file

__all__ = ["image_folder", "recipe_file"]
