"""Hostile and plural forms: bounded work for the one, every file in order from the other."""

import asyncio
import gc
import time
import warnings

import pytest
from fastapi import Request

from eulerlora_client.contract.problems import InvalidUpload, MalformedBody, UnsupportedMedia
from service.decoding.decode import Declared
from service.http.upload import Upload, read_file, read_files

BOUNDARY = "frontier"
MULTIPART = b"multipart/form-data; boundary=" + BOUNDARY.encode()
FILE_HEADERS = b'Content-Disposition: form-data; name="file"; filename="a.png"'
CONTENT = bytes(range(256)) * 3
PIECE_BYTES = 65_536
FIELD_HEADERS = b'Content-Disposition: form-data; name="x"'
MEGABYTES = 20 * 1024 * 1024
HOSTILE = {
    "1,001 parts": lambda: multipart(*[(FIELD_HEADERS, b"x")] * 1001),
    "1,001 files": lambda: multipart(*[(FILE_HEADERS, b"x")] * 1001),
    "a 2 MB text field": lambda: multipart((FIELD_HEADERS, bytes(2_000_000))),
    "more than 8 part headers": lambda: multipart((FILE_HEADERS + b"\r\nX-More: y" * 8, CONTENT)),
    "a huge part header": lambda: multipart(
        (FILE_HEADERS + b"\r\nX: " + bytes(MEGABYTES), CONTENT)
    ),
    "a huge part header's name": lambda: multipart(
        (FILE_HEADERS + b"\r\n" + b"x" * MEGABYTES, CONTENT)
    ),
    "a huge preamble": lambda: b"x" * MEGABYTES + b"\r\n" + multipart((FILE_HEADERS, CONTENT)),
    "a huge preamble of empty lines": lambda: b"\r\n" * (MEGABYTES // 2),
    "a huge preamble of boundaries begun": lambda: f"--{BOUNDARY[:-1]}".encode() * (MEGABYTES // 9),
    "nothing but line ends in a file": lambda: multipart(
        (FILE_HEADERS, b"\r" * MEGABYTES), end=b""
    ),
    "nothing but boundaries begun in a file": lambda: multipart(
        (FILE_HEADERS, f"\r\n--{BOUNDARY[:-1]}".encode() * (MEGABYTES // 11)), end=b""
    ),
}


def multipart(*parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> bytes:
    """A multipart body of (headers, content) parts."""
    mark = f"--{BOUNDARY}".encode()
    return b"".join(
        mark + b"\r\n" + headers + b"\r\n\r\n" + content + b"\r\n" for headers, content in parts
    ) + (mark + end)


def request_of(body: bytes, content_type: bytes) -> Request:
    """A request whose body arrives in pieces."""
    pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers}
    return Request(scope, receive)  # type: ignore[arg-type]


def read(body: bytes, content_type: bytes = MULTIPART) -> Upload:
    """What `read_file` makes of a body."""
    return asyncio.run(read_file(request_of(body, content_type)))


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_multipart_body_is_malformed_and_takes_bounded_work(fault) -> None:
    body = HOSTILE[fault]()
    started = time.process_time()
    with pytest.raises(MalformedBody):
        read(body)
    assert time.process_time() - started < 3  # seconds; most take less than a tenth


@pytest.mark.parametrize(
    "parameters",
    [b";" * 15_000, b'; a="' + b"\\" * 15_000, b"; x=y" * 3_000, b'; boundary="' * 1_000],
    ids=["separators", "an open quotation", "parameters", "boundaries"],
)
def test_a_hostile_content_type_takes_bounded_work(parameters) -> None:
    started = time.process_time()
    with pytest.raises(MalformedBody):
        read(multipart((FILE_HEADERS, CONTENT)), b"multipart/form-data" + parameters)
    assert time.process_time() - started < 1


def read_many(*parts: tuple[bytes, bytes], content_type: bytes = MULTIPART) -> list[Upload]:
    """What `read_files` makes of these parts, at most three named `files`."""
    return asyncio.run(read_files(request_of(multipart(*parts), content_type), 3))


def files_headers(name: str) -> bytes:
    return f'Content-Disposition: form-data; name="files"; filename="{name}"'.encode()


def test_many_files_are_read_in_order_and_empty_ones_kept() -> None:
    typed = files_headers("c.png") + b"\r\nContent-Type: image/png"
    read = read_many((files_headers("b.jpg"), CONTENT), (files_headers(""), b""), (typed, b"x"))
    assert read == [
        Upload(CONTENT, Declared(None, "b.jpg")),
        Upload(b"", Declared(None, "")),
        Upload(b"x", Declared("image/png", "c.png")),
    ]


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([], "found none"),
        ([(files_headers("a"), b"x")] * 4, "at most 3 files"),
        ([(files_headers("a"), b"x"), (FILE_HEADERS, b"x")], "files only"),
        ([(files_headers("a"), b"x"), (FIELD_HEADERS, b"x")], "files only"),
        ([(b'Content-Disposition: form-data; name="files"', b"x")], "no filename"),
    ],
    ids=["none", "too many", "another name", "a field", "without a filename"],
)
def test_many_files_of_another_kind_or_number_are_an_invalid_upload(parts, fault) -> None:
    with pytest.raises(InvalidUpload, match=fault):
        read_many(*parts)


@pytest.mark.parametrize("content_type", [b"image/png", b"application/json", b""])
def test_many_files_come_as_multipart_only(content_type) -> None:
    with pytest.raises(UnsupportedMedia):
        read_many((files_headers("a"), b"x"), content_type=content_type)


def test_a_file_that_is_cut_off_is_closed_again() -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MalformedBody, match="closing boundary"):
            read(body[:300])
        gc.collect()  # an open file would warn here, and pytest fail
