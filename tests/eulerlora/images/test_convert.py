"""BMP and TIFF files become PNG files with the same picture, or are named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from eulerlora.images.convert import convert_folder
from eulerlora.images.files import read_image
from eulerlora_contract.errors import ImageFilesError
from tests.program import refusal, run

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def save(
    path: Path, pixels: np.ndarray = PIXELS, mode: str | None = None, **options: object
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_every_picture_is_the_same_and_other_files_are_copied(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save(folder / "a" / "colour.BMP")
    save(folder / "a" / "gray.bmp", PIXELS[..., 0])
    save(folder / "lzw.tif", compression="tiff_lzw", icc_profile=PROFILE)
    save(folder / "indexed.tiff", mode="P")
    save(folder / "alpha.tif", mode="RGBA")
    save(folder / "turned.tif", exif=turned())
    wide = PIXELS[..., 0].astype(np.uint16) * 257
    for order in "<", ">":
        save(folder / f"wide{order}.tif", wide.astype(f"{order}u2"))
    save(folder / "kept.png")
    (folder / "labels.csv").write_text("path,label\nlzw.tif,a\n")
    save(folder / ".thumbnails" / "a.bmp")

    done = convert_folder(folder, out)
    assert (len(done.converted), done.copied, done.failures) == (8, 2, [])
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.*")} == {
        *done.converted, "kept.png", "labels.csv",
    }  # fmt: skip
    assert (out / "labels.csv").read_bytes() == (folder / "labels.csv").read_bytes()
    whole = PIXELS.transpose(2, 0, 1)
    for name in ("a/colour.BMP", "lzw.tif", "alpha.tif"):
        assert (read_image(out / f"{name}.png", name).pixels.numpy() == whole).all(), name
    for name in ("a/gray.bmp", "wide<.tif", "wide>.tif"):
        assert (read_image(out / f"{name}.png", name).pixels.numpy() == whole[0]).all(), name
    assert (
        read_image(out / "turned.tif.png", "t").pixels.numpy() == np.rot90(whole, -1, (1, 2))
    ).all()
    with Image.open(folder / "indexed.tiff") as indexed:
        expected = np.asarray(indexed.convert("RGB")).transpose(2, 0, 1)
    assert (read_image(out / "indexed.tiff.png", "i").pixels.numpy() == expected).all()
    with Image.open(out / "lzw.tif.png") as image:
        assert image.info["icc_profile"] == PROFILE


def deep_tiff() -> bytes:
    """16 bits per sample and colour."""
    samples = (PIXELS.astype("<u2") * 257).tobytes()
    entries = [
        (256, 3, 1, 50), (257, 3, 1, 40), (258, 3, 3, 200), (259, 3, 1, 1), (262, 3, 1, 2),
        (273, 4, 1, 300), (277, 3, 1, 3), (278, 3, 1, 40), (279, 4, 1, len(samples)),
    ]  # fmt: skip
    head = b"II*\0" + (8).to_bytes(4, "little") + len(entries).to_bytes(2, "little")
    for tag, kind, count, value in entries:
        head += b"".join(n.to_bytes(size, "little") for n, size in
                         ((tag, 2), (kind, 2), (count, 4), (value, 4)))  # fmt: skip
    head = (head + bytes(4)).ljust(200, b"\0") + (16).to_bytes(2, "little") * 3
    return head.ljust(300, b"\0") + samples


def test_what_a_png_does_not_keep_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "deep.tif").write_bytes(deep_tiff())
    (change,) = convert_folder(tmp_path / "in", tmp_path / "out").changes
    assert change.startswith("deep.tif") and "16 bits" in change
    pixels = read_image(tmp_path / "out" / "deep.tif.png", "deep").pixels
    assert (pixels.numpy() == PIXELS.transpose(2, 0, 1)).all()


def test_files_that_cannot_be_converted_are_named_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save(folder / "good.bmp")
    save(folder / "pages.tif", save_all=True, append_images=[Image.fromarray(PIXELS)])
    save(folder / "print.tif", mode="CMYK")
    save(folder / "twice.bmp")
    save(folder / "twice.bmp.png")
    (folder / "cut.tif").write_bytes(save(folder / "cut.tif").read_bytes()[:900])
    (folder / "other.bmp").write_bytes(save(tmp_path / "a.gif").read_bytes())
    done = run("convert", folder, "--out", out)
    assert done.status == 1
    for name in ("pages.tif", "print.tif", "twice.bmp", "cut.tif", "other.bmp"):
        assert any(line.startswith(f"eulerlora: {name}: ") for line in done.err.splitlines()), name
    assert sorted(path.name for path in out.iterdir()) == ["good.bmp.png", "twice.bmp.png"]
    assert str(out) in refusal("convert", folder, "--out", out)


def test_a_folder_without_such_files_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png")
    with pytest.raises(ImageFilesError, match=r"\.bmp"):
        convert_folder(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
