"""Library, training, commands and service accept the same files, through the same function."""

import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from eulerlora import EulerLoRA
from eulerlora.images.files import read_image
from eulerlora_contract.errors import (
    ImageError,
    SettingsError,
    UnsupportedImageError,
)
from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from tests.damaged_images import contradictory_images
from tests.problems import raises_problem
from tests.service.settings import settings_of
from training.data.cache import decoded_images

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\nshowpage\n%%EOF\n"


NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def encoded(file_format: str, **options: object) -> bytes:
    file = BytesIO()
    Image.fromarray(NOISE).save(file, file_format, **options)
    return file.getvalue()


OTHER = Image.new("RGB", (64, 48), "red")
JPEG = encoded("JPEG", quality=90)
UNUSABLE = {
    "a cut JPEG": JPEG[: len(JPEG) // 2],
    "a cut JPEG with an end": JPEG[: len(JPEG) // 2] + b"\xff\xd9",
    "a JPEG without its end": JPEG[:-2],
    "flipped bits": JPEG[:-300] + bytes(byte ^ 0x55 for byte in JPEG[-300:-280]) + JPEG[-280:],
    "a PNG with a wrong checksum": encoded("PNG")[:-16] + b"\0\0\0\0" + encoded("PNG")[-12:],
    "a cut WebP": encoded("WEBP")[:-100],
    "an animated PNG": encoded("PNG", save_all=True, append_images=[OTHER]),
    "an animated WebP": encoded("WEBP", save_all=True, append_images=[OTHER]),
}
UNSUPPORTED = {
    "BMP": encoded("BMP"),
    "GIF": encoded("GIF"),
    "TIFF": encoded("TIFF"),
    "Netpbm": encoded("PPM"),
    "JPEG 2000": encoded("JPEG2000"),
    "PostScript": POSTSCRIPT,
    "nothing": b"",
}


@pytest.fixture(autouse=True)
def no_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started")
    )


@pytest.mark.parametrize("kind", [*UNUSABLE, *UNSUPPORTED])
def test_a_file_is_refused_by_library_training_and_service(kind: str, tmp_path: Path) -> None:
    content = {**UNUSABLE, **UNSUPPORTED}[kind]
    path = tmp_path / "lesion.jpg"
    path.write_bytes(content)
    is_unsupported = kind in UNSUPPORTED
    with raises_problem("unsupported_media" if is_unsupported else "unusable_image"):
        decode(content, settings_of("images"))
    with pytest.raises(UnsupportedImageError if is_unsupported else ImageError) as caught:
        read_image(path, "lesion")
    assert isinstance(caught.value, UnsupportedImageError) == is_unsupported
    assert decoded_images(tmp_path).bad.keys() == {"lesion.jpg"}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_library_and_service_agree_on_files_that_contradict_themselves() -> None:
    def is_read(read: Callable[[], object], refusal: type[Exception]) -> bool:
        try:
            read()
        except refusal:
            return False
        return True

    for content in list(contradictory_images())[::5]:
        in_library = is_read(lambda content=content: read_image(content, "x"), ImageError)
        in_service = is_read(
            lambda content=content: decode(content, settings_of("images")),
            Problem,
        )
        assert in_library == in_service


@pytest.mark.parametrize("name", ["an animated PNG", "a cut JPEG with an end"])
def test_an_opened_file_is_as_strictly_read_as_its_path(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(UNUSABLE[name])
    model = EulerLoRA.default("cpu")
    for image in (path, Image.open(path)):
        with pytest.raises(ImageError):
            model.predict([image])


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="regular file"):
        read_image(tmp_path / "pipe.png", "pipe")


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_library_training_and_service_have_the_same_limit(
    file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.jpg"
    sides = (8000, 3200) if file_format == "PNG" else (8100, 8000)
    Image.new("L", sides).save(path, file_format)
    content = path.read_bytes()
    with raises_problem("unusable_image"):
        decode(content, settings_of("images"))
    for source in (path, content):
        with pytest.raises(ImageError, match=r"^large: .*--max-pixels"):
            read_image(source, "large")
    assert "--max-pixels" in decoded_images(tmp_path).bad[path.name]
    if file_format == "JPEG":  # is reduced while it is decoded, which is fast
        monkeypatch.setenv("EULERLORA_MAX_PIXELS", str(sides[0] * sides[1]))
        assert read_image(path, "large", input_side=32).pixels.numel() > 0


def test_an_option_changes_the_limit_of_library_and_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "pictures" / "picture.png"
    path.parent.mkdir()
    Image.new("L", (64, 48)).save(path)
    for limit, accepted in ((64 * 48 - 1, False), (64 * 48, True)):
        monkeypatch.setenv("EULERLORA_MAX_PIXELS", str(limit))
        # not from the cache of the other limit
        assert (decoded_images(path.parent).bad == {}) == accepted
        if accepted:
            assert read_image(path, "picture").pixels.shape[1:] == (48, 64)
        else:
            with pytest.raises(ImageError, match="--max-pixels"):
                read_image(path, "picture")


@pytest.mark.parametrize("value", ["", "0", "-1", "1e7", "1000000000", "many"])
def test_a_limit_that_is_no_number_of_pixels_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_MAX_PIXELS", value)
    with pytest.raises(SettingsError, match="EULERLORA_MAX_PIXELS"):
        read_image(b"", "x")


def test_a_file_that_no_image_within_the_limits_needs_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ImageError, match="--max-pixels"):
        read_image(sparse(tmp_path / "zeros.png", 2**42), "zeros")
    monkeypatch.setenv("EULERLORA_MAX_PIXELS", "1000")
    archive = tmp_path / "pictures.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(sparse(tmp_path / "zeros.png", 2**25), "zeros.png")
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.LNKTYPE, "zeros.png"
        file.addfile(link)
    reasons = decoded_images(archive).bad
    assert reasons.keys() == {"zeros.png", "link.png"}
    assert all("--max-pixels" in reason for reason in reasons.values())


def sparse(path: Path, size: int) -> Path:
    path.touch()
    os.truncate(path, size)
    return path
