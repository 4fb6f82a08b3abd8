"""Removal of metadata before an upload: the same pixels, orientation and colours, nothing else."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms, ImageOps, PngImagePlugin

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import lesion_file, upload
from eulerlora_client.images import image_bytes
from eulerlora_contract.image_formats import png_chunk

pytestmark = pytest.mark.browser

SECRET = "Anna Example"
TURNED = 6
FORMATS = {
    "JPEG": {"quality": 80},
    "progressive JPEG": {"quality": 80, "progressive": True},
    "CMYK JPEG": {"quality": 80},
    "PNG": {},
    "WEBP": {"lossless": True},
}
XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6">'
    f"{SECRET}</rdf:Description></x:xmpmeta>"
)
STRIP = """async (content) => {
    const {withoutMetadata} = await import("/page/metadata.js");
    const blob = await withoutMetadata(new Blob([new Uint8Array(content)]));
    return [...new Uint8Array(await blob.arrayBuffer())];
}"""


@pytest.fixture(scope="module")
def strip(browser: Any, server: Any) -> Any:
    """Removes the metadata of a file with the page's module: bytes -> bytes."""
    page = browser.new_page()
    page.goto(server.url)
    yield lambda content: bytes(page.evaluate(STRIP, list(content)))
    page.close()


def exif(orientation: int | None = TURNED) -> Image.Exif:
    """EXIF with a name, a place and an orientation."""
    tags = Image.Exif()
    tags[ExifTags.Base.Artist] = SECRET
    tags.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitudeRef] = "N"
    if orientation is not None:
        tags[ExifTags.Base.Orientation] = orientation
    return tags


def file_with_metadata(kind: str, **options: object) -> bytes:
    """A file with EXIF, a colour profile, XMP and comments or text."""
    file_format = kind.rpartition(" ")[2]
    image = Image.open(BytesIO(lesion_file(width=96, height=64))).convert(
        "CMYK" if "CMYK" in kind else "RGB"
    )
    options = (
        {
            "exif": exif(),
            "icc_profile": ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        }
        | FORMATS[kind]
        | options
    )
    if file_format == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_text("Author", SECRET)
        text.add_itxt("Comment", SECRET, zip=True)
        options["pnginfo"] = text
    else:
        options.setdefault("xmp", XMP.replace("Orientation", "Other").encode())
    if file_format == "JPEG":
        options["comment"] = SECRET
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def upright(content: bytes) -> np.ndarray[Any, Any]:
    with Image.open(BytesIO(content)) as image:
        return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("kind", FORMATS)
def test_pixels_orientation_and_colour_profile_remain_and_everything_else_goes(strip, kind) -> None:
    content = file_with_metadata(kind)
    stripped = strip(content)
    assert SECRET.encode() in content and SECRET.encode() not in stripped
    np.testing.assert_array_equal(upright(stripped), upright(content))
    with Image.open(BytesIO(content)) as before, Image.open(BytesIO(stripped)) as after:
        assert dict(after.getexif()) == {ExifTags.Base.Orientation: TURNED}
        assert after.info["icc_profile"] == before.info["icc_profile"]
        assert not {"comment", "xmp", "XML:com.adobe.xmp", "Author"} & set(after.info)
        assert after.mode == before.mode and getattr(after, "text", {}) == {}
    assert strip(stripped) == stripped
    assert strip(content + SECRET.encode()) == stripped


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_without_an_orientation_gets_no_exif(strip, kind) -> None:
    content = file_with_metadata(kind, exif=exif(None))
    stripped = strip(content)
    with Image.open(BytesIO(stripped)) as after:
        assert dict(after.getexif()) == {}
    np.testing.assert_array_equal(upright(stripped), upright(content))


@pytest.mark.parametrize("kind", FORMATS)
def test_page_and_client_remove_the_same_parts(strip, kind) -> None:
    content = file_with_metadata(kind)
    if kind == "PNG":
        names = (b"tRNS", b"sBIT", b"cLLI", b"KEEP", b"prIv")
        content = content[:33] + b"".join(png_chunk(name, b"123") for name in names) + content[33:]
    assert strip(content) == image_bytes(content, strip_metadata=True)


def test_an_orientation_in_xmp_is_no_orientation(strip) -> None:
    content = file_with_metadata("JPEG", exif=Image.Exif(), xmp=XMP.encode())
    stripped = strip(content)
    assert SECRET.encode() not in stripped
    assert upright(stripped).shape == (64, 96, 3)


def test_the_preview_of_a_jfif_segment_goes(strip) -> None:
    content = file_with_metadata("JPEG")
    assert content[2:11] == b"\xff\xe0\x00\x10JFIF\x00"
    preview = SECRET.encode() * 16  # 8 x 8 pixels
    segment = content[6:18] + bytes([8, 8]) + preview
    length = (2 + len(segment)).to_bytes(2, "big")
    stripped = strip(content[:4] + length + segment + content[20:])
    assert stripped == strip(content)
    assert content[2:20] in stripped


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_file_loses_its_metadata_too(strip, kind) -> None:
    content = file_with_metadata(kind)
    for length in range(12, len(content), len(content) // 10):
        assert SECRET.encode() not in strip(content[:length])


def test_the_page_sends_the_file_without_metadata_unless_told_otherwise(go) -> None:
    content = file_with_metadata("JPEG")
    sent: list[bytes] = []
    with go() as visit:
        visit.page.route(
            "**/triage?*",
            lambda route: (sent.append(route.request.post_data_buffer), route.continue_()),
        )
        visit.add(upload("turned.jpg", content))
        visit.wait(1)
        visit.page.get_by_label("Remove metadata").uncheck()
        visit.add(upload("again.jpg", content))
        visit.wait(2)
        without, complete = visit.answers()
    assert [SECRET.encode() in body for body in sent] == [False, True]
    assert content in sent[1]
    assert not any(name in body for body in sent for name in (b"turned.jpg", b"again.jpg"))
    assert without["prediction"]["seed"] == complete["prediction"]["seed"]  # of the pixels
    assert without["prediction"]["probabilities"] == complete["prediction"]["probabilities"]
    assert (without["quality"]["width"], without["quality"]["height"]) == (64, 96)


def test_a_file_that_is_no_image_is_not_sent(go) -> None:
    with go() as visit:
        visit.add(upload("notes.jpg", b"Anna Example, born in 1970"))
        expect(visit.card("notes.jpg")).to_contain_text("the file was not sent")
        visit.add(upload("photo.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"))
        expect(visit.card("photo.jpg")).to_contain_text("this is a HEIC photograph")
        visit.page.locator("#strip").uncheck()
        visit.add(upload("letter.pdf", b"%PDF-1.7"))
        expect(visit.card("letter.pdf")).to_contain_text("this is a PDF document")
        assert not any("/triage?" in url for url in visit.requests)


def test_a_dicom_file_names_the_option_on_a_server_that_reads_it(go: Any) -> None:
    """The server of the tests reads none: the table of the page says here that it does."""
    with go() as visit:
        visit.page.evaluate(
            """() => {
                const table = document.getElementById("file-kinds");
                const all = JSON.parse(table.textContent);
                for (const kind of all.kinds) kind.is_read = kind.name === "a DICOM file";
                table.textContent = JSON.stringify(all);
            }"""
        )
        visit.add(upload("lesion.dcm", bytes(128) + b"DICM" + bytes(400)))
        visit.wait(1)
        card = visit.card("lesion.dcm")
        expect(card).to_contain_text("The metadata cannot be removed")
        expect(card).to_contain_text("Switch off")
        expect(card).not_to_contain_text("xport")
