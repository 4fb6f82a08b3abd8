"""Files below folders."""

import os
from pathlib import Path

import pytest
from PIL import Image

from eulerlora.images.files import EXTENSIONS
from eulerlora_contract.errors import ImageFilesError
from eulerlora_contract.image_folders import select_files


def touch(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_pictures_of_every_kind_are_selected_whether_the_service_reads_them_or_not(
    tmp_path: Path,
) -> None:
    read = (".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".webp")
    others = (".avif", ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".svg", ".tif", ".tiff")
    pictures = touch(tmp_path, *(f"a{extension}" for extension in (*read, *others)))
    assert set(select_files([tmp_path]).files) == {*pictures}
    assert set(select_files([tmp_path], EXTENSIONS).files) == {*pictures[: len(read)]}


def test_paths_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    b, a, c = touch(tmp_path, "b/2.JPG", "b/1/x.png", "a.jpg")
    assert select_files([c, tmp_path / "b"]).files == (c, a, b)


def test_images_below_folders_and_links_are_listed_in_order(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    folder = tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    for path in (elsewhere / "c.png", folder / "b.JPG", folder / "a.webp", folder / "notes.txt"):
        path.touch()
    (folder / "linked").symlink_to(elsewhere)
    assert select_files([folder]).files == (
        folder / "a.webp", folder / "b.JPG", folder / "linked" / "c.png",
    )  # fmt: skip


def test_a_link_to_a_parent_folder_lists_no_file_twice(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "up").symlink_to(tmp_path)
    assert select_files([tmp_path]).files == (tmp_path / "a.png",)


def test_a_file_given_twice_is_selected_once(tmp_path: Path, monkeypatch) -> None:
    (file,) = touch(tmp_path, "1.png")
    monkeypatch.chdir(tmp_path)
    assert select_files([Path("1.png"), file, tmp_path]).files == (Path("1.png"),)


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(ImageFilesError, match=r"\.txt: 1"):
        select_files([tmp_path])


def test_other_files_are_counted_by_kind_and_hidden_ones_by_their_folder(tmp_path: Path) -> None:
    kept = touch(tmp_path, "a.JPE", "a.jfif", "b/.cache/x.txt", "b/c.png")
    touch(tmp_path, ".thumbnails/a.jpg", "b/@eaDir/c.png", "b/@eaDir/d.png", "__MACOSX/._a.jpg",
          "._c.png", ".DS_Store", "Thumbs.db", "notes.txt", "LICENSE")  # fmt: skip
    Image.new("RGB", (2, 2)).save(tmp_path / "tall.bmp")
    Image.new("RGB", (2, 2)).save(tmp_path / "x", "TIFF")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    selection = select_files([tmp_path], EXTENSIONS)
    assert list(selection.files) == [kept[0], kept[1], kept[3]]
    assert selection.hidden == {".thumbnails": 1, "@eaDir": 2, "__MACOSX": 1, "._*": 1}
    others, hidden = selection.notes
    assert others.startswith("6 files") and len(hidden.split(",")) == 4
    for kind in ("BMP image (.bmp)", "TIFF image", "pipe", "broken link",
                 ".txt", "without an extension: 1"):  # fmt: skip
        assert kind in others


def test_pictures_without_their_extension_are_selected_by_their_content(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "IMG_1", "JPEG")
    Image.new("RGB", (2, 2)).save(tmp_path / "a.bak", "PNG")
    Image.new("RGB", (2, 2)).save(tmp_path / "b.tmp", "WEBP")
    Image.new("RGB", (2, 2)).save(tmp_path / "x", "TIFF")
    for name in ("c", "DICOMDIR"):
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
    (tmp_path / "d").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "e.cr2").write_bytes(b"II*\0\x10\0\0\0CR\x02")
    (tmp_path / "film").write_bytes(b"\0\0\0\x18ftypmp42")
    touch(tmp_path, "LICENSE")
    os.mkfifo(tmp_path / "pipe")
    names = ["IMG_1", "a.bak", "b.tmp", "c", "d", "e.cr2", "x"]
    assert [file.name for file in select_files([tmp_path]).files] == names
    assert [file.name for file in select_files([tmp_path], EXTENSIONS).files] == names[:3]
    assert len(select_files([tmp_path]).others) == 3


def test_files_that_are_named_are_taken_as_they_are(tmp_path: Path) -> None:
    hidden, other = touch(tmp_path, ".hidden/a.jpg", "notes.txt")
    assert select_files([hidden, other]).files == (hidden, other)
    assert select_files([hidden.parent]).files == (hidden,)


def test_an_unlistable_folder_is_an_error(tmp_path: Path, monkeypatch) -> None:
    touch(tmp_path, "1.png", "closed/2.png")
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ImageFilesError, match="closed: "):
        select_files([tmp_path])
