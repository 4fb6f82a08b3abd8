"""Images in folders and archives; decoding; unusable images."""

import tarfile
from pathlib import Path

import pytest
import torch

from eulerlora.errors import DataError
from training.data.sources import list_images, read_image


def test_a_folder_and_an_archive_of_it_list_the_same_images(
    image_folder: Path, tmp_path: Path
) -> None:
    archive_path = tmp_path / "images.tar.gz"
    with tarfile.open(archive_path, "w:gz") as archive:
        archive.add(image_folder, ".")
    on_disk, in_memory = list_images(image_folder), list_images(archive_path)
    assert list(on_disk) == list(in_memory) == sorted(on_disk)
    for name in on_disk:
        torch.testing.assert_close(
            read_image(name, on_disk[name]), read_image(name, in_memory[name])
        )


def test_other_files_are_ignored(tmp_path: Path, image_folder: Path) -> None:
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "A.PNG").write_bytes((image_folder / "other" / "0.png").read_bytes())
    assert list(list_images(tmp_path)) == ["A.PNG"]


def test_paths_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("not an archive")
    for name, reason in (
        ("empty", "no images"),
        ("absent", "no such"),
        ("text.tar", "readable tar"),
    ):
        with pytest.raises(DataError, match=reason):
            list_images(tmp_path / name)


def test_an_undecodable_image_is_refused_with_its_name() -> None:
    with pytest.raises(DataError, match=r"train/red/07\.png"):
        read_image("train/red/07.png", b"\x89PNG\r\n\x1a\nbroken")
