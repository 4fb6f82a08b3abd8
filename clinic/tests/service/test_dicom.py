"""DICOM files: the image inside has the answer; everything else is refused without its values."""

import logging
import sys
import warnings
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from service.decoding.details import Detail
from service.decoding.formats import Declared, estimated_s, header_of
from service.process import effective_settings
from tests.icc_profiles import DISPLAY_P3, rgb_profile
from tests.problems import raises_problem
from tests.service.conftest import app_of, encoded
from tests.service.decoding.test_sandbox import check_as_in_this_process
from tests.service.settings import settings_of

pydicom = pytest.importorskip("pydicom")

from pydicom.data import get_testdata_file  # noqa: E402
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.pixels import pixel_array  # noqa: E402

LIMITS = settings_of("images", dicom=True)
DERMOSCOPIC, PHOTOGRAPHIC = "1.2.840.10008.5.1.4.1.1.77.1.7", "1.2.840.10008.5.1.4.1.1.77.1.4"
IMPLICIT, EXPLICIT, BIG_ENDIAN, DEFLATED = (
    "1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.1.99",
)  # fmt: skip
JPEG, JPEG_EXTENDED, J2K_LOSSLESS, J2K = (
    f"1.2.840.10008.1.2.4.{number}" for number in (50, 51, 90, 91)
)
RLE, JPEG_LS = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.80"
SECRET = "Zz^Secret"

# Files of pydicom in colour, 8 bits, one frame; their class is Secondary Capture or Ultrasound.
READABLE = (
    "SC_jpeg_no_color_transform.dcm", "SC_jpeg_no_color_transform_2.dcm",
    "SC_rgb_dcmtk_+eb+cr.dcm", "SC_rgb_dcmtk_+eb+cy+n1.dcm", "SC_rgb_dcmtk_+eb+cy+n2.dcm",
    "SC_rgb_dcmtk_+eb+cy+np.dcm", "SC_rgb_dcmtk_+eb+cy+s2.dcm", "SC_rgb_dcmtk_+eb+cy+s4.dcm",
    "SC_rgb_gdcm_KY.dcm", "SC_rgb_jpeg_app14_dcmd.dcm", "SC_rgb_jpeg_dcmd.dcm",
    "SC_rgb_jpeg_dcmtk.dcm", "SC_rgb_jpeg_lossy_gdcm.dcm", "examples_jpeg2k.dcm",
    "examples_rgb_color.dcm", "SC_ybr_full_422_uncompressed.dcm",
)  # fmt: skip
REFUSED = (
    "CT_small.dcm", "ExplVR_BigEnd.dcm", "JPEGLSNearLossless_08.dcm", "JPGExtended.dcm",
    "MR_small_RLE.dcm", "MR_truncated.dcm", "SC_rgb_jls_lossy_line.dcm", "SC_rgb_jpeg_gdcm.dcm",
    "SC_rgb_rle.dcm", "SC_rgb_rle_2frame.dcm", "SC_rgb_small_odd.dcm",
    "badVR.dcm", "examples_overlay.dcm",
    "examples_palette.dcm", "examples_ybr_color.dcm", "image_dfl.dcm", "liver_1frame.dcm",
    "meta_missing_tsyntax.dcm", "nested_priv_SQ.dcm", "rtdose.dcm", "rtplan_truncated.dcm",
    "test-SR.dcm", "waveform_ecg.dcm",
)  # fmt: skip


def dicom_file(pixel_data: bytes, syntax: str = EXPLICIT, **attributes: Any) -> bytes:
    """A DICOM file of the size of the photo, made with pydicom."""
    file = Dataset()
    values = {
        "SOPClassUID": DERMOSCOPIC, "SOPInstanceUID": "1.2.3", "PatientName": SECRET,
        "Rows": 48, "Columns": 64, "SamplesPerPixel": 3, "PhotometricInterpretation": "RGB",
        "PlanarConfiguration": 0, "BitsAllocated": 8, "BitsStored": 8, "HighBit": 7,
        "PixelRepresentation": 0,
    } | attributes  # fmt: skip
    for name, value in values.items():
        if value is not None:
            setattr(file, name, value)
    file.PixelData = pixel_data
    file["PixelData"].VR = "OB"
    file["PixelData"].is_undefined_length = syntax not in (IMPLICIT, EXPLICIT)
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = syntax
    file.file_meta.MediaStorageSOPClassUID = values["SOPClassUID"]
    file.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    target = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pydicom.dcmwrite(target, file, enforce_file_format=True)
    return target.getvalue()


def with_class(name: str) -> bytes:
    """A file of pydicom as one of Dermoscopic Photography."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = pydicom.dcmread(get_testdata_file(name, download=False))
        file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = DERMOSCOPIC
        target = BytesIO()
        file.save_as(target)
    return target.getvalue()


def compressed(image: Image.Image, file_format: str, syntax: str, **attributes: Any) -> bytes:
    frame = BytesIO()
    image.save(frame, file_format, **({"no_jp2": True} if file_format == "JPEG2000" else {}))
    return dicom_file(encapsulate([frame.getvalue()]), syntax, **attributes)


def pixels_of(data: bytes, limits: Any = LIMITS) -> Any:
    return decode(data, limits).pixels


def problem_of(data: bytes, limits: Any = LIMITS) -> Problem:
    with raises_problem("unsupported_media", "unusable_image") as caught:
        decode(data, limits)
    return caught.value


@pytest.mark.parametrize("sop_class", [DERMOSCOPIC, PHOTOGRAPHIC])
@pytest.mark.parametrize("syntax", [IMPLICIT, EXPLICIT])
def test_uncompressed_pixels_have_the_values_of_the_png(photo, png, syntax, sop_class) -> None:
    expected = pixels_of(png)
    plain = dicom_file(photo.tobytes(), syntax, SOPClassUID=sop_class)
    planes = np.asarray(photo).transpose(2, 0, 1).tobytes()
    planar = dicom_file(planes, syntax, PlanarConfiguration=1)
    for data in (plain, planar):
        assert pixels_of(data).equal(expected)
    luma = photo.convert("YCbCr")
    ybr = dicom_file(luma.tobytes(), syntax, PhotometricInterpretation="YBR_FULL")
    difference = pixels_of(ybr).permute(1, 2, 0).numpy() - rgb_of(np.asarray(luma, float))
    assert np.abs(difference).max() <= 1


def rgb_of(ybr: Any) -> Any:
    """The colours of YBR_FULL (PS3.3, C.7.6.3.1.2)."""
    y, blue, red = ybr[..., 0], ybr[..., 1] - 128, ybr[..., 2] - 128
    green = y - 0.114 * 1.772 / 0.587 * blue - 0.299 * 1.402 / 0.587 * red
    return np.stack([y + 1.402 * red, green, y + 1.772 * blue], axis=-1).clip(0, 255)


@pytest.mark.parametrize("syntax", [JPEG, JPEG_EXTENDED])
def test_a_jpeg_inside_has_the_pixels_of_the_file(photo, syntax) -> None:
    jpeg = encoded(photo, "JPEG", quality=90)
    data = dicom_file(encapsulate([jpeg]), syntax, PhotometricInterpretation="YBR_FULL_422")
    assert pixels_of(data).equal(pixels_of(jpeg))
    assert estimated_s(header_of(data, LIMITS)) > 0


@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL_422", "MONOCHROME2"])
def test_a_jpeg_that_says_how_its_colours_are_stored_is_believed(photo, photometric) -> None:
    jpeg = encoded(photo, "JPEG", quality=90)
    assert jpeg[6:10] == b"JFIF"
    data = dicom_file(encapsulate([jpeg]), JPEG, PhotometricInterpretation=photometric)
    assert pixels_of(data).equal(pixels_of(jpeg))


@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL"])
def test_the_tag_decides_for_a_jpeg_without_a_marker(photo, photometric) -> None:
    jpeg = encoded(photo, "JPEG", quality=90, keep_rgb=photometric == "RGB")
    marker = jpeg.index(b"\xff\xee" if photometric == "RGB" else b"\xff\xe0")
    length = int.from_bytes(jpeg[marker + 2 : marker + 4])
    bare = jpeg[:marker] + jpeg[marker + 2 + length :]
    data = dicom_file(encapsulate([bare]), JPEG, PhotometricInterpretation=photometric)
    assert pixels_of(data).equal(pixels_of(jpeg))


def test_uncompressed_pixels_with_halved_chroma_are_those_of_the_pairs(photo) -> None:
    luma = np.asarray(photo.convert("YCbCr")).astype(int)
    chroma = (luma[:, 0::2, 1:] + luma[:, 1::2, 1:]) // 2
    pairs = np.concatenate([luma[:, 0::2, :1], luma[:, 1::2, :1], chroma], axis=-1)
    content = pairs.astype(np.uint8).tobytes()
    halved = dicom_file(content, PhotometricInterpretation="YBR_FULL_422")
    whole = luma.copy()
    whole[..., 1:] = chroma.repeat(2, axis=1)
    full = dicom_file(whole.astype(np.uint8).tobytes(), PhotometricInterpretation="YBR_FULL")
    assert pixels_of(halved).equal(pixels_of(full))
    assert (
        problem_of(dicom_file(content[:-4], PhotometricInterpretation="YBR_FULL_422")).status == 422
    )


@pytest.mark.parametrize("syntax", [J2K_LOSSLESS, J2K])
def test_lossless_jpeg_2000_has_the_values_of_the_png(photo, png, syntax) -> None:
    data = compressed(photo, "JPEG2000", syntax, PhotometricInterpretation="YBR_RCT")
    assert pixels_of(data).equal(pixels_of(png))


@pytest.mark.parametrize("name", READABLE)
def test_files_of_pydicom_have_the_pixels_that_it_decodes(name) -> None:
    data = with_class(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pixel_array(BytesIO(data), decoding_plugin="")
    difference = pixels_of(data).permute(1, 2, 0).numpy().astype(int) - expected
    assert np.abs(difference).max() <= 3  # two conversions of YCbCr


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_of_pydicom_are_refused(name) -> None:
    assert problem_of(Path(get_testdata_file(name, download=False)).read_bytes()).status == 415
    if name not in ("meta_missing_tsyntax.dcm", "rtplan_truncated.dcm"):
        assert problem_of(with_class(name)).status in (415, 422)


def test_the_colour_profile_of_the_file_is_applied(photo) -> None:
    profile = rgb_profile(DISPLAY_P3)
    jpeg = encoded(photo, "JPEG", icc_profile=profile)
    plain = encoded(photo, "JPEG")
    ybr = {"PhotometricInterpretation": "YBR_FULL_422", "ICCProfile": profile}
    assert pixels_of(dicom_file(encapsulate([plain]), JPEG, **ybr)).equal(pixels_of(jpeg))
    native = dicom_file(photo.tobytes(), ICCProfile=profile)
    assert pixels_of(native).equal(pixels_of(encoded(photo, "PNG", icc_profile=profile)))


@pytest.mark.parametrize(
    "attributes",
    [
        {"BitsAllocated": 16}, {"BitsStored": 7}, {"NumberOfFrames": 2}, {"Rows": 49},
        {"SamplesPerPixel": 1}, {"PhotometricInterpretation": "MONOCHROME2"},
        {"PhotometricInterpretation": SECRET}, {"Rows": 0}, {"Columns": None}, {"Rows": 20_000},
    ],
)  # fmt: skip
def test_other_attributes_are_refused_without_their_values(photo, attributes) -> None:
    problem = problem_of(dicom_file(photo.tobytes(), **attributes))
    assert (problem.status, SECRET in str(problem)) == (422, False)


@pytest.mark.parametrize("syntax", [BIG_ENDIAN, DEFLATED, RLE, JPEG_LS, "1.2.3"])
def test_other_transfer_syntaxes_are_refused_before_anything_is_parsed(
    photo, syntax, monkeypatch
) -> None:
    monkeypatch.setattr("eulerlora_clinic.service.dicom._parsed", None)
    data = dicom_file(photo.tobytes()).replace(EXPLICIT.encode() + b"\0", padded(syntax), 1)
    with raises_problem("unsupported_media", match="expected the DICOM transfer syntax") as caught:
        header_of(data, LIMITS)
    assert syntax not in str(caught.value)
    problem_of(data)


def padded(syntax: str) -> bytes:
    """A UID in the space of that of explicit VR, which has 20 bytes."""
    return syntax.encode()[:20].ljust(20, b"\0")


def test_a_deflated_bomb_is_never_expanded(photo) -> None:
    meta = dicom_file(b"", DEFLATED)
    bomb = meta[: meta.index(b"1.2.840.10008.1.2.1.99") + 22] + zlib.compress(bytes(10**8))
    assert problem_of(bomb).status == 415


def test_a_second_class_in_the_data_set_is_refused(photo) -> None:
    data = dicom_file(photo.tobytes())
    at = data.rindex(DERMOSCOPIC.encode())
    assert problem_of(data[:at] + b"9" + data[at + 1 :]).status == 422


def test_truncated_and_damaged_files_are_refused(photo) -> None:
    jpeg = {"PhotometricInterpretation": "YBR_FULL_422"}
    for data in (
        dicom_file(photo.tobytes()),
        dicom_file(encapsulate([encoded(photo, "JPEG")]), JPEG, **jpeg),
    ):
        for size in (132, 140, 200, 400, len(data) // 2, len(data) - 200):
            assert problem_of(data[:size]).status in (415, 422)
    generator = np.random.default_rng(0)
    data = bytearray(dicom_file(photo.tobytes()))
    for _ in range(200):
        damaged = bytearray(data)
        for at in generator.integers(132, 600, 4):
            damaged[at] = generator.integers(256)
        try:
            decode(bytes(damaged), LIMITS)
        except Problem as problem:
            assert problem.status in (415, 422) and SECRET not in str(problem)


def test_dicom_is_refused_unless_it_is_allowed(photo) -> None:
    assert problem_of(dicom_file(photo.tobytes()), settings_of("images")).status == 415


def test_a_declared_type_that_differs_is_a_warning(photo, png) -> None:
    data = dicom_file(photo.tobytes())
    assert decode(data, LIMITS, Declared("application/dicom", "a.dcm")).warnings == ()
    for content, declared in ((data, "image/png"), (png, "application/dicom")):
        (warning,) = decode(content, LIMITS, Declared(declared)).warnings
        assert warning.code == "declared_type_differs"


def test_the_service_answers_as_for_the_image_and_logs_no_value(model, photo, png, caplog) -> None:
    data = dicom_file(photo.tobytes())
    broken = data[:-1000]
    headers = {"Content-Type": "application/dicom"}
    caplog.set_level(logging.DEBUG)
    with TestClient(app_of(model, images={"dicom": True})) as client:
        answers = [
            client.post("/predict?mode=stoch", content=content, headers={"Content-Type": kind})
            for content, kind in ((data, "application/dicom"), (png, "image/png"))
        ]
        form = client.post("/predict?mode=stoch", files={"file": ("a.dcm", data)})
        refused = client.post("/predict", content=broken, headers=headers)
    first, second, third = ({**one.json(), "request_id": ""} for one in (*answers, form))
    assert first == second == third
    assert (refused.status_code, refused.json()["code"]) == (422, "unusable_image")
    assert SECRET not in refused.text + caplog.text


def files_of_all_kinds(photo: Image.Image) -> Iterator[bytes]:
    """Yields a file of every kind that another part of a library decodes, good and damaged."""
    for charset in ("ISO_IR 192", "ISO 2022 IR 87", "ISO_IR 166", "UNKNOWN"):
        yield dicom_file(photo.tobytes(), SpecificCharacterSet=charset, PatientName=None)
    yield dicom_file(photo.tobytes(), IMPLICIT, ICCProfile=rgb_profile(DISPLAY_P3))
    yield compressed(photo, "JPEG", JPEG, PhotometricInterpretation="YBR_FULL_422")
    yield compressed(photo, "JPEG2000", J2K)
    yield compressed(photo, "JPEG2000", J2K)[:-200]


def test_a_decoder_in_its_sandbox_decodes_and_refuses_as_this_process(photo) -> None:
    check_as_in_this_process(files_of_all_kinds(photo), LIMITS)


@pytest.mark.parametrize(
    "attributes",
    [
        {"SOPClassUID": "1.2.3"}, {"NumberOfFrames": 2}, {"BitsAllocated": 16},
        {"SamplesPerPixel": 1}, {"PhotometricInterpretation": "MONOCHROME2"}, {"Rows": 49},
    ],
)  # fmt: skip
def test_a_decoder_can_say_why_it_refuses_a_file(photo, attributes) -> None:
    text = problem_of(dicom_file(photo.tobytes(), **attributes)).detail
    assert Detail.of(text).text == text


def test_a_decoder_can_say_what_is_wrong_with_a_frame(photo) -> None:
    jpeg = bytearray(encoded(photo, "JPEG", keep_rgb=True))
    marker = jpeg.index(b"\xff\xee")
    del jpeg[marker : marker + 16]
    for data in (
        dicom_file(encapsulate([bytes(jpeg)]), JPEG, PhotometricInterpretation="MONOCHROME2"),
        compressed(photo, "JPEG2000", J2K, Rows=49),
        compressed(photo, "JPEG2000", J2K, PhotometricInterpretation="MONOCHROME2"),
    ):
        text = problem_of(data).detail
        assert text.startswith("DICOM: expected") and Detail.of(text).text == text


def test_a_missing_library_ends_the_start_with_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setitem(sys.modules, "pydicom.encaps", None)
    monkeypatch.setenv("EULERLORA_SERVE_IMAGES__DICOM", "true")
    with pytest.raises(SettingsError, match=r"eulerlora-clinic\[dicom\]"):
        effective_settings()


def test_the_environment_variable_switches_it_on(monkeypatch) -> None:
    for text, is_accepted in (("true", True), ("false", False)):
        monkeypatch.setenv("EULERLORA_SERVE_IMAGES__DICOM", text)
        containers = effective_settings().images.containers
        assert [container.name for container in containers] == ["DICOM"] * is_accepted
    monkeypatch.setenv("EULERLORA_SERVE_IMAGES__DICOM", "perhaps")
    with pytest.raises(SettingsError, match="dicom"):
        effective_settings()


def test_the_details_of_a_model_list_its_media_type(model) -> None:
    for accepted in (True, False):
        with TestClient(app_of(model, images={"dicom": accepted})) as client:
            limits = client.get("/models/" + model.config.name).json()["image_limits"]
        assert ("application/dicom" in limits["media_types"]) == accepted
