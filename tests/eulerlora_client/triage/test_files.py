"""Selection of the files of a triage run."""

import os
from pathlib import Path

import pytest

from eulerlora.images.files import EXTENSIONS as MODEL_EXTENSIONS
from eulerlora_client.errors import ImageFilesError
from eulerlora_client.sdk.images import EXTENSIONS, select_files


def touch(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_the_extensions_that_the_model_reads_are_selected() -> None:
    assert set(MODEL_EXTENSIONS) < set(EXTENSIONS)


def test_paths_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    b, a, c = touch(tmp_path, "b/2.JPG", "b/1/x.png", "a.jpg")
    assert select_files([c, tmp_path / "b"]).files == (c, a, b)


def test_formats_that_only_some_services_read_are_selected_too(tmp_path: Path) -> None:
    files = touch(tmp_path, "1.heic", "2.TIFF", "3.dcm", "4.webp", "5.DICOM")
    touch(tmp_path, "notes.txt", "jpg")
    selection = select_files([tmp_path])
    assert (selection.files, selection.skipped) == (tuple(files), 2)


def test_a_given_file_is_selected_whatever_its_extension(tmp_path: Path) -> None:
    (file,) = touch(tmp_path, "notes.txt")
    assert select_files([file]).files == (file,)


def test_a_file_given_twice_is_selected_once(tmp_path: Path, monkeypatch) -> None:
    (file,) = touch(tmp_path, "1.png")
    monkeypatch.chdir(tmp_path)
    assert select_files([Path("1.png"), file, tmp_path]).files == (Path("1.png"),)


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(ImageFilesError, match="got 1 other files"):
        select_files([tmp_path])


def test_an_unlistable_folder_is_an_error(tmp_path: Path, monkeypatch) -> None:
    touch(tmp_path, "1.png", "closed/2.png")
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ImageFilesError, match=r"closed: cannot be listed \(Permission denied\)"):
        select_files([tmp_path])
