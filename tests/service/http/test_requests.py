"""Files in request bodies, and the cancellation of requests whose client disconnects."""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.http.requests import read_file, read_files, while_connected
from tests.problems import raises_problem

pytestmark = pytest.mark.anyio

File = tuple[bytes, str | None, str | None]
"""The content, media type and name of an uploaded file."""
BOUNDARY = "frontier"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
FILE_HEADERS = b'Content-Disposition: form-data; name="file"; filename="a.png"'
CONTENT = bytes(range(256)) * 3


class Body:
    """A request body that arrives in pieces. taken: the number of received pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces)
        self.taken = 0

    async def receive(self) -> dict[str, object]:
        piece = self.pieces[self.taken]
        self.taken += 1
        more = self.taken < len(self.pieces)
        return {"type": "http.request", "body": piece, "more_body": more}


def seen(upload: Any) -> File:
    return upload.content, upload.declared.media_type, upload.declared.filename


def read(body: Body | bytes, content_type: str | None, **headers: str) -> File:
    """The result of `read_file`; `bytes` have a declared length, a `Body` is chunked."""
    if isinstance(body, bytes):
        headers |= {"content-length": str(len(body))}
        body = Body([body])
    elif "content_length" not in headers:
        headers |= {"transfer-encoding": "chunked"}
    if content_type is not None:
        headers |= {"content-type": content_type}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": raw}
    return seen(asyncio.run(read_file(Request(scope, body.receive))))


def multipart(
    *parts: tuple[bytes, bytes], boundary: str = BOUNDARY, end: bytes = b"--\r\n"
) -> bytes:
    """A multipart body of (headers, content) parts."""
    mark = f"--{boundary}".encode()
    body = b"".join(
        mark + b"\r\n" + headers + b"\r\n\r\n" + content + b"\r\n" for headers, content in parts
    )
    return body + mark + end


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("media_type", ["image/jpeg", "image/png", "image/webp"])
def test_a_raw_body_is_the_file_with_the_content_type_of_the_request(media_type) -> None:
    expected = (CONTENT, media_type, None)
    assert read(CONTENT, media_type) == expected
    assert read(CONTENT, f" {media_type.upper()} ; charset=binary") == expected
    assert read(Body(in_pieces(CONTENT, 100)), media_type) == expected


def test_the_part_named_file_is_the_file_with_the_content_type_of_the_part() -> None:
    typed = (FILE_HEADERS + b"\r\nContent-Type: image/webp", CONTENT)
    assert read(multipart(typed), MULTIPART) == (CONTENT, "image/webp", "a.png")
    assert read(multipart((FILE_HEADERS, CONTENT)), MULTIPART) == (CONTENT, "", "a.png")


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_multipart_body_can_arrive_in_pieces_of_any_size(size) -> None:
    body = multipart((FILE_HEADERS, CONTENT + b"\r\n--front" + CONTENT))
    assert read(Body(in_pieces(body, size)), MULTIPART)[0] == (CONTENT + b"\r\n--front" + CONTENT)


def test_a_large_file_stays_in_memory(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "does-not-exist"))
    content = bytes(3 * 1024 * 1024)
    body = multipart((FILE_HEADERS, content))
    assert read(body, MULTIPART)[0] == content


@pytest.mark.parametrize(
    ("sent", "declared"),
    [(None, ""), ("", ""), ("application/octet-stream", "application/octet-stream"),
     ("binary/octet-stream", "application/octet-stream"), ("image/jpg", "image/jpeg"),
     ("image/pjpeg", "image/jpeg"), ("image/x-png", "image/png"), ("image/heic", "image/heic"),
     ("image/svg+xml", "image/svg+xml")],
)  # fmt: skip
def test_the_content_decides_on_a_body_of_any_image_type_or_of_none(sent, declared) -> None:
    assert read(CONTENT, sent) == (CONTENT, declared, None)
    if sent:
        part = (FILE_HEADERS + f"\r\nContent-Type: {sent}".encode(), CONTENT)
        assert read(multipart(part), MULTIPART) == (CONTENT, declared, "a.png")


@pytest.mark.parametrize(
    ("parameter", "name"),
    [(b"filename*=UTF-8''l%C3%A9sion%20%22.PNG", "l__sion__.PNG"),
     (b"FileName*=iso-8859-1'de'a.png", "a.png"),
     (b"filename*0*=UTF-8''a; filename*1=b.png", "ab.png"),
     (b"filename=a.png; filename*=UTF-8''b.jpg", "a.png"),
     (b"filename*=UTF-8''b.jpg; filename=a.png", "a.png"),
     (b"filename*=nonsense''%ff.png", "_.png"), (b"filename*=", ""), (b"filename*=x.png", "x.png")],
)  # fmt: skip
def test_a_part_may_have_its_name_in_the_extended_form_alone(parameter, name) -> None:
    header = b'Content-Disposition: form-data; name="file"; ' + parameter
    assert read(multipart((header, CONTENT)), MULTIPART) == (CONTENT, "", name)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/x-www-form-urlencoded", "text/plain",
     "application/pdf", "multipart/mixed; boundary=x"],
)  # fmt: skip
def test_another_media_type_is_unsupported_and_the_body_not_read(content_type) -> None:
    body = Body([b'{"image": ""}'])
    with raises_problem("unsupported_media"):
        read(body, content_type)
    assert body.taken == 0


FIELD_HEADERS = b'Content-Disposition: form-data; name="x"'
FORM = multipart((FILE_HEADERS, CONTENT))


INVALID_UPLOADS = [
    (b"", None),
    (b"", "image/png"),
    (b"", MULTIPART),
    (b"", "application/json"),
    (Body([b""]), "image/png"),
    (multipart((FILE_HEADERS, b"")), MULTIPART),
    (multipart(), MULTIPART),
    (multipart((FILE_HEADERS.replace(b"file", b"x", 1), CONTENT)), MULTIPART),
    (multipart(*[(FILE_HEADERS, CONTENT)] * 2), MULTIPART),
    (multipart((FILE_HEADERS, CONTENT), (FIELD_HEADERS, b"1")), MULTIPART),
    (multipart((FIELD_HEADERS.replace(b"x", b"file"), bytes(100))), MULTIPART),
    (multipart((FIELD_HEADERS.replace(b"x", b"file"), bytes(5000))), MULTIPART),
]
MALFORMED_BODIES = [
    (FORM, "multipart/form-data"),
    (FORM, "multipart/form-data; boundary="),
    (FORM, "multipart/form-data; boundary=other"),
    (FORM, f"multipart/form-data; boundary={'x' * 500}"),
    (FORM[:-4], MULTIPART),
    (FORM[:-300], MULTIPART),
    (b"hello, this is no multipart body", MULTIPART),
    (multipart((b"Content-Type: image/png", CONTENT)), MULTIPART),
    (multipart((b"Content-Disposition: form-data", CONTENT)), MULTIPART),
    (multipart((b"no colon here", CONTENT)), MULTIPART),
    (multipart((FILE_HEADERS + b"; filename*=a; filename*0=b", CONTENT)), MULTIPART),
    (multipart(*[(FILE_HEADERS, b"x")] * 9), MULTIPART),
    (multipart(*[(FIELD_HEADERS, b"x")] * 9), MULTIPART),
]  # test_hostile_forms has those that are too large


@pytest.mark.parametrize(
    ("code", "bodies"), [("invalid_upload", INVALID_UPLOADS), ("malformed_body", MALFORMED_BODIES)]
)
def test_a_body_other_than_one_file_is_refused(code, bodies) -> None:
    for body, content_type in bodies:
        with raises_problem(code):
            read(body, content_type)


def test_the_boundary_can_be_quoted_with_any_legal_character() -> None:
    boundary = "a'b(c)+_,-./:=?"
    body = multipart((FILE_HEADERS, CONTENT), boundary=boundary)
    assert read(body, f'multipart/form-data; boundary="{boundary}"')[0] == CONTENT


MULTIPART_FILES = b"multipart/form-data; boundary=b"


def part(content: bytes, name: str = "files", filename: str | None = "a.png") -> bytes:
    disposition = f'form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    head = f"--b\r\nContent-Disposition: {disposition}\r\nContent-Type: image/png\r\n\r\n"
    return head.encode() + content + b"\r\n"


def read_many(body: bytes) -> list[File]:
    """The files of a body that arrives in small pieces."""
    headers = [(b"content-type", MULTIPART_FILES), (b"transfer-encoding", b"chunked")]
    request = Request({"type": "http", "headers": headers}, Body(in_pieces(body, 7)).receive)
    return [seen(upload) for upload in asyncio.run(read_files(request, 3))]


def test_all_files_are_read_in_order_with_declared_type_and_name() -> None:
    body = part(b"one") + part(b"", filename="b.jpg") + part(b"\r\n--c") + b"--b--\r\n"
    assert read_many(body) == [
        (b"one", "image/png", "a.png"),
        (b"", "image/png", "b.jpg"),
        (b"\r\n--c", "image/png", "a.png"),
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (part(b"x") * 4 + b"--b--\r\n", "invalid_upload"),
        (part(b"x") + part(b"x", name="file") + b"--b--\r\n", "invalid_upload"),
        (part(b"x", filename=None) + b"--b--\r\n", "invalid_upload"),
        (part(b"x", name="note", filename=None) + b"--b--\r\n", "invalid_upload"),
        (b"--b--\r\n", "invalid_upload"),
        (part(b"x"), "malformed_body"),
        (b"nonsense", "malformed_body"),
    ],
)
def test_a_body_with_other_parts_than_files_is_refused(body: bytes, problem: str) -> None:
    with raises_problem(problem):
        read_many(body)


TIMEOUT_S = 120


def request_of(disconnected: asyncio.Event, *before: dict[str, Any]) -> Request:
    """A request with these messages, whose client disconnects when the event is set."""
    messages = list(before)

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await disconnected.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def test_a_connected_client_does_not_affect_the_block() -> None:
    before = asyncio.all_tasks()
    async with while_connected(request_of(asyncio.Event())):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before  # the watcher has ended


async def test_a_disconnect_cancels_the_block() -> None:
    ended: list[str] = []

    disconnected = asyncio.Event()
    empty = {"type": "http.request", "body": b"", "more_body": False}
    asyncio.get_running_loop().call_later(0.01, disconnected.set)
    with pytest.raises(ClientDisconnect):
        async with while_connected(request_of(disconnected, empty)):
            try:
                await asyncio.sleep(TIMEOUT_S)
            finally:
                ended.append("the block")
    assert ended == ["the block"]


async def test_an_exception_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with while_connected(request_of(asyncio.Event())):
            raise ZeroDivisionError


async def test_cancellation_is_not_reported_as_a_disconnect() -> None:
    async def block(entered: asyncio.Event) -> None:
        async with while_connected(request_of(asyncio.Event())):
            entered.set()
            await asyncio.sleep(TIMEOUT_S)

    entered = asyncio.Event()
    task = asyncio.create_task(block(entered))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
