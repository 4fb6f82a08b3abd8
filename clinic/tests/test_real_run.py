"""`eulerlora triage` over real lesions, damaged files and unrelated images."""

import csv
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from tests.program import run
from tests.server_process import serving

pytestmark = [pytest.mark.data, pytest.mark.slow]

LESIONS, OTHERS = 200, 20
BROKEN = {
    "cut.jpg": lambda content: content[: len(content) // 2],
    "glued.jpg": lambda content: content[: len(content) // 2] + b"\xff\xd9",
    "empty.jpg": lambda _: b"",
    "text.jpg": lambda _: b"not an image",
    "scan.tif": lambda _: b"II*\0" + bytes(100),
}


def jpeg_files(archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive) as files:
        for member in files:
            file = files.extractfile(member) if member.name.endswith(".jpg") else None
            if file is not None:
                yield file.read()


def test_every_file_has_one_row_and_only_lesions_are_routine(
    real_data: Path, tmp_path: Path
) -> None:
    folder, file = tmp_path / "images", tmp_path / "rows.csv"
    folder.mkdir()
    lesions = list(islice(jpeg_files(next(real_data.glob("ham10000*.tar.*"))), LESIONS))
    others = list(islice(jpeg_files(next(real_data.glob("cifar10*.tar.*"))), OTHERS))
    for kind, contents in (("lesion", lesions), ("other", others)):
        for number, content in enumerate(contents):
            (folder / f"{kind}-{number}.jpg").write_bytes(content)
    for name, damage in BROKEN.items():
        (folder / name).write_bytes(damage(lesions[0]))
    with serving(DEFAULT_CHECKPOINT) as server:
        server.wait_for("/readyz", 200)
        done = run("triage", folder, "--url", server.url, "--csv", file)
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = {Path(row["file"]).name: row for row in csv.DictReader(lines)}
    assert set(rows) == {path.name for path in folder.iterdir()}
    assert len(rows) == LESIONS + OTHERS + len(BROKEN)
    assert done.status == 1
    assert f"{len(BROKEN)} of {len(rows)} files have no decision" in done.err
    assert {name for name, row in rows.items() if row["problem_detail"]} == set(BROKEN)
    routine = [name for name, row in rows.items() if row["disposition"] == "routine"]
    assert [name for name in routine if name.startswith("other")] == []
