"""Which files a triage run is about."""

import os
from pathlib import Path

import pytest

from eulerlora.image_files import EXTENSIONS
from eulerlora_client.errors import ImageFilesError
from eulerlora_client.triage.files import SUPPORTED_EXTENSIONS, select_files


def touched(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_the_service_reads_what_the_project_reads() -> None:
    assert SUPPORTED_EXTENSIONS == EXTENSIONS


def test_places_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    b, a, c = touched(tmp_path, "b/2.JPG", "b/1/x.png", "a.jpg")
    assert select_files([c, tmp_path / "b"]).files == (c, a, b)


def test_pictures_that_the_service_cannot_read_are_not_passed_over(tmp_path: Path) -> None:
    files = touched(tmp_path, "1.heic", "2.TIFF", "3.dcm", "4.webp")
    touched(tmp_path, "notes.txt", "jpg")
    found = select_files([tmp_path])
    assert (found.files, found.skipped) == (tuple(files), 2)


def test_a_file_that_is_named_is_taken_whatever_its_name(tmp_path: Path) -> None:
    (file,) = touched(tmp_path, "notes.txt")
    assert select_files([file]).files == (file,)


def test_a_file_that_is_named_twice_is_taken_once(tmp_path: Path, monkeypatch) -> None:
    (file,) = touched(tmp_path, "1.png")
    monkeypatch.chdir(tmp_path)
    assert select_files([Path("1.png"), file, tmp_path]).files == (Path("1.png"),)


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    touched(tmp_path, "notes.txt")
    with pytest.raises(ImageFilesError, match="got 1 other files"):
        select_files([tmp_path])


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch) -> None:
    touched(tmp_path, "1.png", "closed/2.png")
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ImageFilesError, match=r"closed: cannot be listed \(Permission denied\)"):
        select_files([tmp_path])
