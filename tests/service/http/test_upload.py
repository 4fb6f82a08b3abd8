"""Request bodies -> one file: forms of upload, and limits that hold while the body arrives."""

import asyncio
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

import httpx
import pytest
from fastapi import Request

from eulerlora_client.contract.problems import InvalidUpload, MalformedBody, UnsupportedMedia
from service.decoding.decode import Declared
from service.http.upload import MAX_PARTS, Upload, read_file
from tests.service.real_server import SOCKET_TIMEOUT_S

BOUNDARY = "frontier"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
FILE_HEADERS = b'Content-Disposition: form-data; name="file"; filename="a.png"'
CONTENT = bytes(range(256)) * 3


class Body:
    """A request's body as it arrives, piece by piece. taken: pieces that were asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces)
        self.taken = 0

    async def receive(self) -> dict[str, object]:
        piece = self.pieces[self.taken]
        self.taken += 1
        more = self.taken < len(self.pieces)
        return {"type": "http.request", "body": piece, "more_body": more}


def read(body: Body | bytes, content_type: str | None, **headers: str) -> Upload:
    """What `read_file` makes of a body; its length is declared unless it comes as a `Body`."""
    if isinstance(body, bytes):
        headers |= {"content-length": str(len(body))}
        body = Body([body])
    elif "content_length" not in headers:
        headers |= {"transfer-encoding": "chunked"}
    if content_type is not None:
        headers |= {"content-type": content_type}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": raw}
    return asyncio.run(read_file(Request(scope, body.receive)))


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
def test_a_raw_body_is_the_file_and_its_content_type_the_declared_one(media_type) -> None:
    wanted = Upload(CONTENT, Declared(media_type))
    assert read(CONTENT, media_type) == wanted
    assert read(CONTENT, f" {media_type.upper()} ; charset=binary") == wanted
    assert read(Body(in_pieces(CONTENT, 100)), media_type) == wanted


def test_the_part_named_file_is_the_file_and_its_own_type_the_declared_one() -> None:
    typed = (FILE_HEADERS + b"\r\nContent-Type: image/webp", CONTENT)
    assert read(multipart(typed), MULTIPART) == Upload(CONTENT, Declared("image/webp", "a.png"))
    assert read(multipart((FILE_HEADERS, CONTENT)), MULTIPART) == Upload(
        CONTENT, Declared(None, "a.png")
    )


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_multipart_body_may_arrive_in_pieces_of_any_size(size) -> None:
    body = multipart((FILE_HEADERS, CONTENT + b"\r\n--front" + CONTENT))
    assert read(Body(in_pieces(body, size)), MULTIPART).content == (
        CONTENT + b"\r\n--front" + CONTENT
    )


def test_a_large_file_stays_in_memory(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "does-not-exist"))
    content = bytes(3 * 1024 * 1024)
    body = multipart((FILE_HEADERS, content))
    assert read(body, MULTIPART).content == content


@pytest.mark.parametrize(
    "content_type",
    [None, "", "application/json", "application/x-www-form-urlencoded", "text/plain",
     "application/octet-stream", "image/gif", "image/svg+xml", "multipart/mixed; boundary=x"],
)  # fmt: skip
def test_a_body_of_another_type_is_unsupported_and_not_read(content_type) -> None:
    body = Body([b'{"image": ""}'])
    with pytest.raises(UnsupportedMedia):
        read(body, content_type)
    assert body.taken == 0


@pytest.mark.parametrize("content_type", [None, "image/png", MULTIPART, "application/json"])
def test_no_body_at_all_is_an_invalid_upload(content_type) -> None:
    with pytest.raises(InvalidUpload, match="no body"):
        read(b"", content_type)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (Body([b""]), "image/png"),
        (multipart((FILE_HEADERS, b"")), MULTIPART),
    ],
)
def test_an_empty_file_is_an_invalid_upload(body, content_type) -> None:
    with pytest.raises(InvalidUpload, match="empty"):
        read(body, content_type)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(FILE_HEADERS.replace(b"file", b"image", 1), CONTENT)],
        [(FILE_HEADERS, CONTENT), (FILE_HEADERS, CONTENT)],
        [(FILE_HEADERS, CONTENT), (b'Content-Disposition: form-data; name="seed"', b"1")],
    ],
    ids=["none", "another name", "two files", "a field beside it"],
)
def test_anything_but_one_part_named_file_is_an_invalid_upload(parts) -> None:
    with pytest.raises(InvalidUpload, match=r"wanted (one file|files only)"):
        read(multipart(*parts), MULTIPART)


@pytest.mark.parametrize(
    "size",
    [100, 5000],
)
def test_a_part_without_a_filename_is_an_invalid_upload(size) -> None:
    with pytest.raises(InvalidUpload, match="filename"):
        read(multipart((b'Content-Disposition: form-data; name="file"', bytes(size))), MULTIPART)


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other",
     f"multipart/form-data; boundary={'x' * 500}"],
)  # fmt: skip
def test_a_missing_or_wrong_boundary_is_a_malformed_body(content_type) -> None:
    with pytest.raises(MalformedBody):
        read(multipart((FILE_HEADERS, CONTENT)), content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"hello, this is no multipart body",
        b"preamble " * 1000 + b"\r\n" + multipart((FILE_HEADERS, CONTENT)),
        multipart((b"Content-Type: image/png", CONTENT)),
        multipart((b"Content-Disposition: form-data", CONTENT)),
        multipart((FILE_HEADERS + b"\r\nX-More: y" * 8, CONTENT)),
        multipart((FILE_HEADERS + b"\r\nX-Long: " + b"y" * 5000, CONTENT)),
        multipart((b"no colon here", CONTENT)),
        multipart(*[(FILE_HEADERS, b"x")] * (MAX_PARTS + 1)),
        multipart(*[(b'Content-Disposition: form-data; name="x"', b"x")] * (MAX_PARTS + 1)),
        multipart((b'Content-Disposition: form-data; name="x"', bytes(2000))),
    ],
    ids=["no boundary in it", "preamble", "no disposition", "no name", "too many headers",
         "long header", "bad header", "too many files", "too many fields", "large field"],
)  # fmt: skip
def test_a_body_that_is_no_small_multipart_form_is_malformed(body) -> None:
    with pytest.raises(MalformedBody):
        read(body, MULTIPART)


@pytest.mark.parametrize("cut", [4, 300])
def test_a_body_cut_off_before_its_last_boundary_is_malformed(cut) -> None:
    with pytest.raises(MalformedBody):
        read(multipart((FILE_HEADERS, CONTENT))[:-cut], MULTIPART)


def test_the_boundary_may_be_quoted_and_hold_any_legal_character() -> None:
    boundary = "a'b(c)+_,-./:=?"
    body = multipart((FILE_HEADERS, CONTENT), boundary=boundary)
    assert read(body, f'multipart/form-data; boundary="{boundary}"').content == CONTENT


HEAD = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 1000000000\r\n\r\nfew bytes",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"c000\r\n" + bytes(0xC000) + b"\r\n"
        b"c000\r\n" + bytes(0xC000) + b"\r\n" + b"c000\r\n" + bytes(0xC000) + b"\r\n",
    ],
    ids=["declared", "chunked"],
)
def test_a_real_server_answers_413_while_the_body_is_still_to_come(live, request_bytes) -> None:
    with socket.create_connection(("127.0.0.1", live), timeout=SOCKET_TIMEOUT_S) as connection:
        connection.sendall(request_bytes)
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            received = connection.recv(65536)
            assert received, "closed before the whole answer had come"
            answer += received
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"application/problem+json" in answer
        assert b'"code":"body_too_large"' in answer
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""  # closed: the rest is not wanted


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_far_too_large_body_to_its_end_still_gets_the_413(
    live, chunked
) -> None:
    pieces = [bytes(10_000)] * 300
    response = httpx.post(
        f"http://127.0.0.1:{live}/predict",
        content=iter(pieces) if chunked else b"".join(pieces),
        headers={"Content-Type": "image/jpeg"},
        timeout=SOCKET_TIMEOUT_S,
    )
    assert response.status_code == 413
    assert response.json()["code"] == "body_too_large"
    assert response.headers["Connection"] == "close"
    assert httpx.get(f"http://127.0.0.1:{live}/livez", timeout=SOCKET_TIMEOUT_S).status_code == 200
