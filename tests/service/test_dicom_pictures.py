"""DICOM files made from real lesions have the answers of the pictures inside, in every form."""

import csv
import os
import tarfile
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from service.settings import PREFIX
from tests.eulerlora_client.runs import triage
from tests.server_process import ServerProcess, serving
from training.data.ham10000 import image_paths

pydicom = pytest.importorskip("pydicom")

from pydicom.encaps import encapsulate  # noqa: E402

from tests.service.decoding import test_dicom as forms  # noqa: E402
from tests.service.decoding.test_dicom import dicom_file  # noqa: E402

pytestmark = [pytest.mark.data, pytest.mark.slow]

PICTURES = 20
JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
PLAIN_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png"}


def allow_dicom() -> None:
    """Changes the environment of the server."""
    os.environ[f"{PREFIX}IMAGES__DICOM"] = "true"
    os.environ[f"{PREFIX}DECODING__CLIENT_S_PER_MINUTE"] = "10000"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(DEFAULT_CHECKPOINT, change=allow_dicom) as started:
        started.wait_for("/readyz", 200)
        yield started


@pytest.fixture(scope="module")
def jpegs(real_data: Path) -> list[bytes]:
    """Returns the first pictures of HAM10000, in a folder or its archive."""
    (source, *_) = image_paths(real_data)
    if source.is_dir():
        return [path.read_bytes() for path in sorted(source.glob("*.jpg"))[:PICTURES]]
    with tarfile.open(source) as archive:
        members = (member for member in archive if member.name.endswith(".jpg"))
        files = (archive.extractfile(member) for member in members)
        return [file.read() for file in islice(files, PICTURES) if file is not None]


def answer(server: ServerProcess, path: str, content: bytes, media_type: str) -> Any:
    """Returns the answer to a picture without what depends on the request or on earlier ones."""
    response = server.post(path, content, media_type)
    assert response.status_code == 200, response.text
    body = response.json()
    prediction = body.get("prediction", body)
    prediction["request_id"] = ""
    prediction["warnings"] = [
        warning for warning in prediction["warnings"] if warning["code"] != "distribution_shift"
    ]
    return body


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def files_of(jpeg: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields name and content of DICOM files, and the plain file with the same pixels."""
    with Image.open(BytesIO(jpeg)) as opened:
        image = opened.convert("RGB")
    size = {"Rows": image.height, "Columns": image.width}
    png = encoded(image, "PNG")
    planes = np.asarray(image).transpose(2, 0, 1).tobytes()
    yield "implicit", dicom_file(image.tobytes(), forms.IMPLICIT, **size), png
    yield "explicit", dicom_file(image.tobytes(), forms.EXPLICIT, **size), png
    yield "planar", dicom_file(planes, PlanarConfiguration=1, **size), png
    ybr = {**size, "PhotometricInterpretation": "YBR_FULL_422"}
    for syntax in (forms.JPEG, JPEG_EXTENDED):
        yield syntax, dicom_file(encapsulate([jpeg]), syntax, **ybr), jpeg
    lossless = encoded(image, "JPEG2000", no_jp2=True)
    lossy = encoded(image, "JPEG2000", no_jp2=True, irreversible=True, quality_layers=[20])
    with Image.open(BytesIO(lossy)) as opened:
        lossy_png = encoded(opened.convert("RGB"), "PNG")
    for syntax, frame, plain, colours in (
        (forms.J2K_LOSSLESS, lossless, png, "YBR_RCT"),
        (forms.J2K, lossless, png, "YBR_RCT"),
        (forms.J2K, lossy, lossy_png, "YBR_ICT"),
    ):
        attributes = {**size, "PhotometricInterpretation": colours}
        yield f"{syntax} {colours}", dicom_file(encapsulate([frame]), syntax, **attributes), plain


@pytest.mark.parametrize("path", ["/predict?mode=stoch", "/predict", "/triage"])
def test_every_form_has_the_answer_of_the_picture_inside(
    server: ServerProcess, jpegs: list[bytes], path: str
) -> None:
    assert len(jpegs) == PICTURES
    for jpeg in jpegs:
        plain_answers: dict[bytes, Any] = {}
        for name, dicom, plain in files_of(jpeg):
            media_type = PLAIN_TYPES["JPEG" if plain == jpeg else "PNG"]
            if plain not in plain_answers:
                plain_answers[plain] = answer(server, path, plain, media_type)
            assert answer(server, path, dicom, "application/dicom") == plain_answers[plain], name


def test_a_folder_of_dicom_files_has_the_rows_of_the_pictures(
    server: ServerProcess, jpegs: list[bytes], tmp_path: Path
) -> None:
    rows = {}
    for kind in ("dcm", "plain"):
        (tmp_path / kind).mkdir()
        for number, jpeg in enumerate(jpegs[:5]):
            for form, (_, dicom, plain) in enumerate(files_of(jpeg)):
                suffix = ".jpg" if plain == jpeg else ".png"
                content, end = (dicom, ".dcm") if kind == "dcm" else (plain, suffix)
                (tmp_path / kind / f"{number}-{form}{end}").write_bytes(content)
        table = tmp_path / f"{kind}.csv"
        assert triage(tmp_path / kind, "--url", server.url, "--csv", table).status == 0
        with table.open(newline="") as lines:
            rows[kind] = {Path(row["file"]).stem: row for row in csv.DictReader(lines)}
    assert rows["dcm"].keys() == rows["plain"].keys()
    for name, row in rows["dcm"].items():
        of_file = {"file", "request_id"}
        assert {k: v for k, v in row.items() if k not in of_file} == {
            k: v for k, v in rows["plain"][name].items() if k not in of_file
        }, name
