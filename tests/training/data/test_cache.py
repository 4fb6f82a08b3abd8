"""Images decoded once."""

import json
import os
import shutil
import tarfile
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from eulerlora.errors import DataError
from training.data import cache as pixel_cache
from training.data import decoding
from training.data.cache import INDEX, PIXELS, cache_folder, decoded_images
from training.data.labelled_images import ImageDataset, LabelledImage
from training.data.sources import list_images, read_image


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("EULERLORA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(image_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(image_folder / "test", tmp_path / "place"))


@pytest.fixture
def archive(place: Path, tmp_path: Path) -> Path:
    path = tmp_path / "images.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.add(place, ".")
    return path


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("decoded anew")

    monkeypatch.setattr(pixel_cache, "decode_all", forbidden)


def test_decoded_images_are_those_of_the_files_by_sorted_name(place: Path, archive: Path) -> None:
    plain = list_images(place)
    for each in (place, archive):
        found = decoded_images(each)
        assert list(found.sources) == list(plain)
        assert found.bad == {}
        for name, source in found.sources.items():
            assert isinstance(source, torch.Tensor)
            assert torch.equal(source, read_image(name, plain[name]))


def test_a_second_call_reads_neither_the_archive_nor_an_image(
    place: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [decoded_images(each) for each in (place, archive)]
    forbid_decoding(monkeypatch)
    monkeypatch.setattr(tarfile, "open", None)
    for before, each in zip(first, (place, archive), strict=True):
        after = decoded_images(each)
        assert list(after.sources) == list(before.sources)
        assert all(torch.equal(after.sources[n], before.sources[n]) for n in before.sources)


@pytest.mark.parametrize("change", ["content", "time", "new", "gone", "name"])
def test_a_changed_folder_is_decoded_anew_and_its_old_pixels_are_dropped(
    place: Path, cache: Path, change: str
) -> None:
    before = decoded_images(place)
    file = place / "red" / "00.png"
    if change == "content":
        shutil.copy(place / "blue" / "00.png", file)
    elif change == "time":
        os.utime(file, ns=(0, 0))
    elif change == "new":
        shutil.copy(file, place / "red" / "99.png")
    elif change == "gone":
        file.unlink()
    else:
        file.rename(place / "red" / "98.png")
    after = decoded_images(place)
    plain = list_images(place)
    assert list(after.sources) == list(plain)
    assert all(torch.equal(after.sources[n], read_image(n, plain[n])) for n in plain)
    assert len(list(cache.rglob(PIXELS))) == 1
    assert int(before.sources["green/00.png"].sum()) > 0  # still mapped


@pytest.mark.parametrize("file", [PIXELS, INDEX])
@pytest.mark.parametrize("size", [None, 0, 10])
def test_a_damaged_cache_is_made_anew(
    place: Path, cache: Path, file: str, size: int | None
) -> None:
    decoded_images(place)
    path = next(cache.rglob(file))
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    found, plain = decoded_images(place), list_images(place)
    assert all(torch.equal(found.sources[n], read_image(n, plain[n])) for n in plain)


def test_bad_images_are_remembered_with_the_reason(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "red" / "01.png").write_bytes(b"broken")
    os.truncate(place / "red" / "02.png", 200)
    (place / "red" / "link.png").symlink_to("nowhere")
    first = decoded_images(place)
    forbid_decoding(monkeypatch)
    again = decoded_images(place)
    assert first.bad == again.bad
    assert list(first.bad) == ["red/01.png", "red/02.png", "red/link.png"]
    assert all(reason.startswith("cannot be opened") for reason in first.bad.values())
    assert not first.sources.keys() & first.bad.keys()


def test_an_interrupted_build_leaves_nothing_and_the_next_one_starts_anew(
    place: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path):
        yield "red/00.png", torch.zeros(3, 2, 2, dtype=torch.uint8)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(pixel_cache, "decode_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoded_images(place)
    assert not list(cache.rglob(PIXELS))
    assert len(decoded_images(place).sources) == 18


@pytest.mark.parametrize("obstacle", ["a file in its place", "a full disk"])
def test_without_a_cache_a_line_says_so_and_images_are_read_as_they_are(
    place: Path,
    cache: Path,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (place / "red" / "01.png").write_bytes(b"broken")
    if obstacle == "a full disk":
        monkeypatch.setattr(pixel_cache, "FREE_BYTES", 2**60)
    else:
        cache.write_text("not a folder")
    found = decoded_images(place)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(found.bad) == ["red/01.png"]
    assert len(found.sources) == 17
    assert all(isinstance(source, Path) for source in found.sources.values())
    assert not list(cache.rglob(PIXELS))


def test_places_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("not an archive")
    for name, reason in (
        ("empty", "no images"),
        ("absent", "no such"),
        ("text.tar", "not a readable tar"),
    ):
        with pytest.raises(DataError, match=reason):
            decoded_images(tmp_path / name)


def test_worker_processes_read_it_and_nothing_they_do_reaches_the_file(
    place: Path, cache: Path
) -> None:
    sources = decoded_images(place).sources
    before = next(cache.rglob(PIXELS)).read_bytes()
    images = [LabelledImage(name, source, 0) for name, source in sources.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Pictures(images, blackened), batch_size=6, num_workers=1)
        found = torch.cat([pixels for pixels, _ in loader])
        sources["red/00.png"].zero_()
    assert found.shape == (18, 3, 36, 48)
    assert int(found.sum()) == 0
    assert int(sources["red/01.png"].sum()) > 0
    assert next(cache.rglob(PIXELS)).read_bytes() == before


def blackened(_: int, pixels: torch.Tensor) -> torch.Tensor:
    return pixels.zero_()


def test_the_cache_is_where_the_environment_says_or_where_the_user_s_caches_are(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("EULERLORA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "eulerlora"


def test_the_index_says_whose_pixels_they_are(place: Path, cache: Path) -> None:
    decoded_images(place)
    assert json.loads(next(cache.rglob(INDEX)).read_text())["place"] == str(place)


def test_long_decoding_says_how_far_it_came(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoding, "LINE_EVERY_S", 0)
    decoded_images(place)
    assert "place: 18 images decoded" in capsys.readouterr().out.splitlines()
