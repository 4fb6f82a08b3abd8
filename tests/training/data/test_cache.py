"""The cache of decoded images."""

import fcntl
import os
import shutil
import stat
import tarfile
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eulerlora_contract.errors import DataError
from tests.training.conftest import list_images
from training.data.cache import decoded_images
from training.data.images import LabelledImage
from training.optimisation.batches import LoadedBatches
from training.recipe.schema import AdapterTraining

PIXELS, INDEX = "pixels.bin", "index.json"


def pixels_of(name: str, path: Path) -> torch.Tensor:
    return LabelledImage(name, path, 0).pixels()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EULERLORA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(image_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(image_folder / "test", tmp_path / "images"))


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "images.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, ".")
    return path


@pytest.fixture
def zipped(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.make_archive(str(tmp_path / "zipped"), "zip", folder))


def overwrite_unseen(folder: Path) -> None:
    """Gives all files other content, in the size and with the times that the cache knows."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        before = file.stat()
        file.write_bytes(bytes(before.st_size))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_decoded_images_equal_the_files_and_are_sorted_by_name(
    folder: Path, archive: Path, zipped: Path
) -> None:
    plain = list_images(folder)
    for path in (folder, archive, zipped):
        images = decoded_images(path)
        assert list(images.sources) == list(plain)
        assert images.bad == {}
        for name, source in images.sources.items():
            assert isinstance(source, torch.Tensor)
            assert torch.equal(source, pixels_of(name, plain[name]))


@pytest.mark.parametrize("fault", ["damaged header", "cut between members"])
def test_an_archive_that_ends_before_its_end_is_refused(
    folder: Path, tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as file:
        file.add(folder, ".")
    with tarfile.open(path) as file:
        headers = [member.offset for member in file.getmembers() if member.isfile()]
    content = bytearray(path.read_bytes())
    if fault == "damaged header":
        content[headers[-2] + 100 : headers[-2] + 160] = b"x" * 60
    else:
        del content[headers[-2] :]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"images\.tar: expected a whole tar archive"):
        decoded_images(path)


@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_a_zip_archive_without_its_end_is_refused(zipped: Path, kept: float) -> None:
    os.truncate(zipped, int(zipped.stat().st_size * kept))
    with pytest.raises(DataError, match=r"zipped\.zip"):
        decoded_images(zipped)


def test_unusable_files_of_a_zip_archive_are_named_and_the_others_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_MAX_PIXELS", str(2**14))
    picture, path = (folder / "red" / "00.png").read_bytes(), tmp_path / "odd.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("red/good.png", "red\\windows.png", "red/damaged.png", "__MACOSX/._good.png"):
            file.writestr(name, picture)
        file.writestr("red/bomb.png", bytes(2**26))
        file.writestr("red/lzma.png", picture, zipfile.ZIP_LZMA)
        file.writestr("set/labels.csv", "path,label")
        file.writestr("red/", "")
        for name, kind in (("red/link.png", stat.S_IFLNK), ("red/pipe.png", stat.S_IFIFO)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o644) << 16
            file.writestr(info, "good.png")
        damaged = file.getinfo("red/damaged.png")
    content = bytearray(path.read_bytes())
    start = damaged.header_offset + 30 + len(damaged.filename)
    content[start + 20 : start + 40] = bytes(20)
    path.write_bytes(content)
    images = decoded_images(path)
    assert [*images.sources] == ["red/good.png", "red/windows.png"]
    assert [*images.bad] == [
        f"red/{name}.png" for name in ("bomb", "damaged", "link", "lzma", "pipe")
    ]
    assert images.left_out.others == {"labels.csv": 1}
    assert images.left_out.hidden == {"__MACOSX": 1}


def test_a_second_call_reads_no_archive_and_no_image(
    folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [decoded_images(path) for path in (folder, archive)]
    overwrite_unseen(folder)
    monkeypatch.setattr(tarfile, "open", None)
    for before, path in zip(first, (folder, archive), strict=True):
        after = decoded_images(path)
        assert list(after.sources) == list(before.sources)
        assert all(torch.equal(after.sources[n], before.sources[n]) for n in before.sources)


@pytest.mark.parametrize("change", ["content", "time", "new", "gone", "name"])
def test_a_changed_folder_is_decoded_again_and_its_old_pixels_are_deleted(
    folder: Path, cache: Path, change: str
) -> None:
    before = decoded_images(folder)
    file = folder / "red" / "00.png"
    if change == "content":
        shutil.copy(folder / "blue" / "00.png", file)
    elif change == "time":
        os.utime(file, ns=(0, 0))
    elif change == "new":
        shutil.copy(file, folder / "red" / "99.png")
    elif change == "gone":
        file.unlink()
    else:
        file.rename(folder / "red" / "98.png")
    after = decoded_images(folder)
    plain = list_images(folder)
    assert list(after.sources) == list(plain)
    assert all(torch.equal(after.sources[n], pixels_of(n, plain[n])) for n in plain)
    assert len(list(cache.rglob(PIXELS))) == 1
    assert int(before.sources["green/00.png"].sum()) > 0  # still mapped


@pytest.mark.parametrize("file", [PIXELS, INDEX])
@pytest.mark.parametrize("size", [None, 0, 10])
def test_a_damaged_cache_is_rebuilt(folder: Path, cache: Path, file: str, size: int | None) -> None:
    decoded_images(folder)
    path = next(cache.rglob(file))
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    images, plain = decoded_images(folder), list_images(folder)
    assert all(torch.equal(images.sources[n], pixels_of(n, plain[n])) for n in plain)


def test_it_says_that_it_waits_for_another_program(
    folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded_images(folder)
    next(cache.rglob(INDEX)).unlink()
    with next(cache.rglob("lock")).open() as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(decoded_images, folder)
        said = ""
        while "waiting for another program" not in said:
            assert not waiting.done()
            said += capsys.readouterr().err
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert waiting.result().names == set(list_images(folder))


def test_bad_images_are_cached_with_their_reasons(folder: Path) -> None:
    (folder / "red" / "01.png").write_bytes(b"broken")
    os.truncate(folder / "red" / "02.png", 200)
    (folder / "red" / "link.png").symlink_to("nowhere")
    first = decoded_images(folder)
    overwrite_unseen(folder)
    again = decoded_images(folder)
    assert first.bad == again.bad
    assert list(first.bad) == ["red/01.png", "red/02.png", "red/link.png"]
    unopened, truncated, missing = first.bad.values()
    assert unopened.startswith("expected a JPEG")
    assert "truncated" in truncated
    assert "broken link" in missing
    assert not first.sources.keys() & first.bad.keys()


def test_an_interrupted_build_leaves_no_files_and_the_next_one_succeeds(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = shutil.disk_usage(folder.parent)

    def interrupted(written: Path) -> object:
        if (written / PIXELS).stat().st_size:
            raise KeyboardInterrupt
        return space

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "disk_usage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoded_images(folder)
    assert not list(cache.rglob(PIXELS))
    assert len(decoded_images(folder).sources) == 18


@pytest.mark.parametrize("obstacle", ["a file", "a full disk"])
def test_without_a_cache_a_warning_is_printed_and_images_stay_encoded(
    folder: Path,
    cache: Path,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "red" / "01.png").write_bytes(b"broken")
    if obstacle == "a full disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    else:
        cache.write_text("not a folder")
    images = decoded_images(folder)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(images.bad) == ["red/01.png"]
    assert len(images.sources) == 17
    assert all(isinstance(source, Path) for source in images.sources.values())
    assert not list(cache.rglob(PIXELS))


def test_worker_processes_read_the_cache_and_cannot_change_its_file(
    folder: Path, cache: Path
) -> None:
    sources = decoded_images(folder).sources
    before = next(cache.rglob(PIXELS)).read_bytes()
    images = [LabelledImage(name, source, 0) for name, source in sources.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = AdapterTraining(epochs=1, batch_size=18, workers=1)
        batches = LoadedBatches(images, lambda _: blackened, settings, seed=0)
        images = torch.cat([pixels for pixels, _ in batches.epoch(0, 0)])
        sources["red/00.png"].zero_()
    assert images.shape == (18, 3, 36, 48)
    assert int(images.sum()) == 0
    assert int(sources["red/01.png"].sum()) > 0
    assert next(cache.rglob(PIXELS)).read_bytes() == before


def blackened(_: int, pixels: torch.Tensor) -> torch.Tensor:
    return pixels.zero_()


def test_an_archive_with_links_pipes_devices_and_system_files_is_read_to_its_end(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w") as file:
        for name in ("red/00.png", "red/._00.png", "__MACOSX/red/00.png"):
            file.add(folder / "red" / "00.png", name)
        file.add(folder / "red" / "01.png", "notes.pdf")
        file.addfile(tarfile.TarInfo("set/labels.csv"))
        for name, kind, target in (
            ("red/link.png", tarfile.SYMTYPE, "00.png"),
            ("red/hard.png", tarfile.LNKTYPE, "red/00.png"),
            ("red/dangling.png", tarfile.SYMTYPE, "nowhere.png"),
            ("red/itself.png", tarfile.SYMTYPE, "itself.png"),
            ("red/pipe.png", tarfile.FIFOTYPE, ""),
            ("red/device.png", tarfile.CHRTYPE, ""),
            ("pipe", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            file.addfile(member)
        file.add(folder / "red" / "02.png", "red/02.png")
    images = decoded_images(path)
    assert [*images.sources] == ["red/00.png", "red/02.png", "red/hard.png", "red/link.png"]
    assert {name: reason.rpartition("got a ")[2] for name, reason in images.bad.items()} == {
        "red/dangling.png": "broken link",
        "red/device.png": "pipe or device",
        "red/itself.png": "broken link",
        "red/pipe.png": "pipe or device",
    }
    assert images.left_out.others == {"PNG (.pdf)": 1, "labels.csv": 1, "pipe or device": 1}
    assert images.left_out.hidden == {"._*": 1, "__MACOSX": 1}
    assert decoded_images(path).left_out == images.left_out  # from the cache


def test_a_pipe_among_the_images_of_a_folder_or_in_its_place_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "red" / "pipe.png")
    images = decoded_images(folder)
    assert "pipe" in images.bad["red/pipe.png"]
    assert len(images.sources) == 18
    with pytest.raises(DataError, match="pipe"):
        decoded_images(folder / "red" / "pipe.png")


def test_new_files_of_other_kinds_are_counted_though_the_images_are_cached(folder: Path) -> None:
    assert decoded_images(folder).left_out.notes == []
    (folder / "red" / "a.bmp").write_bytes(b"BM" + bytes(20))
    (folder / ".thumbnails").mkdir()
    shutil.copy(folder / "red" / "00.png", folder / ".thumbnails")
    left_out = decoded_images(folder).left_out
    assert (left_out.others, left_out.hidden) == ({"BMP image (.bmp)": 1}, {".thumbnails": 1})
