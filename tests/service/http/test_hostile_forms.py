"""Hostile forms: parsing takes bounded work, measured in calls rather than in time."""

import encodings
import gc
import sys
import warnings
from types import FrameType

import pytest

from tests.problems import raises_problem
from tests.service.http.test_requests import (
    BOUNDARY,
    CONTENT,
    FIELD_HEADERS,
    FILE_HEADERS,
    MULTIPART,
    Body,
    File,
    in_pieces,
    multipart,
    read,
)

PIECE_BYTES = 65_536
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


def read_pieces(body: bytes, content_type: str) -> File:
    """The result of `read_file` for a body of a declared length."""
    pieces = Body(in_pieces(body, PIECE_BYTES))
    return read(pieces, content_type, content_length=str(len(body)))


def calls_of(body: bytes, content_type: str) -> int:
    """The number of Python and C calls until `read` raises MalformedBody."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with raises_problem("malformed_body"):
            read_pieces(body, content_type)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("form", HOSTILE)
def test_a_hostile_multipart_body_takes_bounded_work(form) -> None:
    assert calls_of(HOSTILE[form](), MULTIPART) < MAX_CALLS


@pytest.mark.parametrize(
    "parameters",
    [";" * 15_000, '; a="' + "\\" * 15_000, "; x=y" * 3_000, '; boundary="' * 1_000],
    ids=["separators", "an open quotation", "parameters", "boundaries"],
)
def test_a_hostile_content_type_takes_bounded_work(parameters) -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    assert calls_of(body, "multipart/form-data" + parameters) < MAX_CALLS


def test_a_header_of_many_parameters_is_refused_even_in_a_quotation() -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    with raises_problem("malformed_body"):
        read(body, f'{MULTIPART}; a="{";" * 100}"')
    with raises_problem("malformed_body"):
        read(multipart((FILE_HEADERS.replace(b"a.png", b";" * 100), CONTENT)), MULTIPART)
    read(multipart((FILE_HEADERS.replace(b"a.png", b"a;b.png"), CONTENT)), MULTIPART)


def test_an_incomplete_file_is_closed() -> None:
    body = multipart((FILE_HEADERS, CONTENT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raises_problem("malformed_body"):
            read(body[:300], MULTIPART)
        gc.collect()  # an open file would raise a warning here


def test_no_name_of_a_charset_is_remembered() -> None:
    known: dict[str, object] = encodings._cache  # type: ignore[attr-defined]
    before = set(known)
    disposition = b"""Content-Disposition: form-data; name="file"; filename*=unknown-1''a.png"""
    body = multipart((disposition, CONTENT))
    upload = read(body, f"{MULTIPART}; charset=unknown-2")
    assert upload == (CONTENT, "", "a.png")
    assert set(known) == before
