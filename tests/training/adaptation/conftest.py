"""A data directory for training through the program."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def labelled(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with train/ and test/ in `set`, and the folder `other`."""
    data = tmp_path_factory.mktemp("data")
    (data / "set").mkdir()
    for part in ("train", "test"):
        (data / "set" / part).symlink_to(image_folder / part)
    (data / "other").symlink_to(image_folder / "other")
    return data
