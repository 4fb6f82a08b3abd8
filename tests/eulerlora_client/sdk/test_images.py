"""Image arguments."""

from io import BytesIO
from pathlib import Path

import pytest

from eulerlora_client.contract.problems import UnreadableFile
from eulerlora_client.sdk.images import image_bytes


def test_a_path_bytes_and_a_file_have_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"pixels")
    with path.open("rb") as file:
        for image in (path, str(path), b"pixels", BytesIO(b"pixels"), file):
            assert image_bytes(image) == b"pixels"
    with pytest.raises(UnreadableFile, match="closed file"):
        image_bytes(file)


@pytest.mark.parametrize("image", ["nowhere.png", Path(), "nul\0.png", "x" * 5000], ids=type)
def test_an_unreadable_file_is_a_problem(image: str | Path) -> None:
    with pytest.raises(UnreadableFile):
        image_bytes(image)
