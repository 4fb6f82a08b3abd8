"""Hostile forms: parsing takes bounded work, measured in calls rather than in time."""

import asyncio
import gc
import sys
import warnings
from types import FrameType

import pytest
from fastapi import Request

from eulerlora_client.contract.problems import MalformedBody
from service.http.requests import Upload, read_file

BOUNDARY = "frontier"
MULTIPART = b"multipart/form-data; boundary=" + BOUNDARY.encode()
FILE_HEADERS = b'Content-Disposition: form-data; name="file"; filename="a.png"'
CONTENT = bytes(range(256)) * 3
PIECE_BYTES = 65_536
FIELD_HEADERS = b'Content-Disposition: form-data; name="x"'
MAX_BYTES = 20 * 1024 * 1024
MAX_CALLS = 1_000_000  # one call per byte would be 20 million
HOSTILE = {
    "1,001 parts": lambda: multipart(*[(FIELD_HEADERS, b"x")] * 1001),
    "1,001 files": lambda: multipart(*[(FILE_HEADERS, b"x")] * 1001),
    "a 2 MB text field": lambda: multipart((FIELD_HEADERS, bytes(2_000_000))),
    "more than 8 part headers": lambda: multipart((FILE_HEADERS + b"\r\nX-More: y" * 8, CONTENT)),
    "a huge part header": lambda: multipart(
        (FILE_HEADERS + b"\r\nX: " + bytes(MAX_BYTES), CONTENT)
    ),
    "a huge part header's name": lambda: multipart(
        (FILE_HEADERS + b"\r\n" + b"x" * MAX_BYTES, CONTENT)
    ),
    "a huge preamble": lambda: b"x" * MAX_BYTES + b"\r\n" + multipart((FILE_HEADERS, CONTENT)),
    "a huge preamble of empty lines": lambda: b"\r\n" * (MAX_BYTES // 2),
    "a huge preamble of boundaries begun": lambda: f"--{BOUNDARY[:-1]}".encode() * (MAX_BYTES // 9),
    "nothing but line ends in a file": lambda: multipart(
        (FILE_HEADERS, b"\r" * MAX_BYTES), end=b""
    ),
    "nothing but boundaries begun in a file": lambda: multipart(
        (FILE_HEADERS, f"\r\n--{BOUNDARY[:-1]}".encode() * (MAX_BYTES // 11)), end=b""
    ),
}


def multipart(*parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> bytes:
    """Returns a multipart body of (headers, content) parts."""
    delimiter = f"--{BOUNDARY}".encode()
    return b"".join(
        delimiter + b"\r\n" + headers + b"\r\n\r\n" + content + b"\r\n"
        for headers, content in parts
    ) + (delimiter + end)


def request_of(body: bytes, content_type: bytes) -> Request:
    """Returns a request whose body arrives in pieces."""
    pieces = [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers}
    return Request(scope, receive)  # type: ignore[arg-type]


def read(body: bytes, content_type: bytes = MULTIPART) -> Upload:
    """Returns the result of `read_file`."""
    return asyncio.run(read_file(request_of(body, content_type)))


def calls_of(body: bytes, content_type: bytes) -> int:
    """Returns the number of Python and C calls until `read` raises MalformedBody."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with pytest.raises(MalformedBody):
            read(body, content_type)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("form", HOSTILE)
def test_a_hostile_multipart_body_takes_bounded_work(form) -> None:
    assert calls_of(HOSTILE[form](), MULTIPART) < MAX_CALLS


@pytest.mark.parametrize(
    "parameters",
    [b";" * 15_000, b'; a="' + b"\\" * 15_000, b"; x=y" * 3_000, b'; boundary="' * 1_000],
    ids=["separators", "an open quotation", "parameters", "boundaries"],
)
def test_a_hostile_content_type_takes_bounded_work(parameters) -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    assert calls_of(body, b"multipart/form-data" + parameters) < MAX_CALLS


def test_an_incomplete_file_is_closed() -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MalformedBody, match="closing boundary"):
            read(body[:300])
        gc.collect()  # an open file would raise a warning here
