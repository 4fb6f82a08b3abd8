"""Parsing of request bodies with many files."""

import asyncio
from typing import Any

import pytest
from fastapi import Request

from eulerlora_client.contract.problems import (
    InvalidUpload,
    MalformedBody,
    Problem,
    UnsupportedMedia,
)
from service.decoding.decode import Declared
from service.http.requests import Upload, read_files

MULTIPART = "multipart/form-data; boundary=b"


def part(content: bytes, name: str = "files", filename: str | None = "a.png") -> bytes:
    disposition = f'form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    head = f"--b\r\nContent-Disposition: {disposition}\r\nContent-Type: image/png\r\n\r\n"
    return head.encode() + content + b"\r\n"


def read(body: bytes, media_type: str = MULTIPART, step: int = 7) -> list[Upload]:
    """Returns the files of a body that arrives in chunks of `step` bytes."""
    chunks = [body[start : start + step] for start in range(0, len(body), step)]

    async def receive() -> Any:
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    headers = [(b"content-type", media_type.encode()), (b"transfer-encoding", b"chunked")]
    return asyncio.run(read_files(Request({"type": "http", "headers": headers}, receive), 3))


def test_all_files_are_read_in_order_with_declared_type_and_name() -> None:
    body = part(b"one") + part(b"", filename="b.jpg") + part(b"\r\n--c") + b"--b--\r\n"
    assert read(body) == [
        Upload(b"one", Declared("image/png", "a.png")),
        Upload(b"", Declared("image/png", "b.jpg")),
        Upload(b"\r\n--c", Declared("image/png", "a.png")),
    ]


@pytest.mark.parametrize(
    ("body", "problem", "detail"),
    [
        (part(b"x") * 4 + b"--b--\r\n", InvalidUpload, "at most 3 files"),
        (part(b"x") + part(b"x", name="file") + b"--b--\r\n", InvalidUpload, "only files"),
        (part(b"x", filename=None) + b"--b--\r\n", InvalidUpload, "filename"),
        (part(b"x", name="note", filename=None) + b"--b--\r\n", InvalidUpload, "only files"),
        (b"--b--\r\n", InvalidUpload, "got none"),
        (part(b"x"), MalformedBody, "closing boundary"),
        (b"nonsense", MalformedBody, "cannot be parsed"),
    ],
    ids=["too many", "another name", "no filename", "a field", "no part", "no end", "nonsense"],
)
def test_a_body_with_other_parts_than_files_is_refused(
    body: bytes, problem: type[Problem], detail: str
) -> None:
    with pytest.raises(problem, match=detail):
        read(body)


@pytest.mark.parametrize("media_type", ["image/png", "application/json", ""])
def test_another_media_type_is_refused(media_type: str) -> None:
    with pytest.raises(UnsupportedMedia):
        read(b"body", media_type)


def test_a_body_without_a_boundary_is_malformed() -> None:
    with pytest.raises(MalformedBody):
        read(part(b"x") + b"--b--\r\n", "multipart/form-data")
