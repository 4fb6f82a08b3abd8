"""HTTP requests as bytes, rendered in advance to save the clients' CPU time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

BOUNDARY = "a-boundary-of-the-benchmarks"
NO_PARAMETERS: Mapping[str, object] = {}


@dataclass(frozen=True)
class Part:
    """A part of a multipart body; a text field without a filename."""

    name: str
    content: bytes
    filename: str | None = None
    media_type: str | None = None


def get(path: str) -> bytes:
    """Returns a GET request."""
    return _head("GET", path)


def post(
    content: bytes,
    media_type: str = "image/jpeg",
    parameters: Mapping[str, object] = NO_PARAMETERS,
    length: int | None = None,
) -> bytes:
    """Returns a POST of /predict. length: declared length; None declares the content's."""
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    content_length = len(content) if length is None else length
    head = _head("POST", f"/predict{query}", f"Content-Type: {media_type}", content_length)
    return head + content


def as_client(request: bytes, address: str) -> bytes:
    """Returns the request as a proxy on this machine forwards it for a client."""
    return request.replace(b"\r\n", f"\r\nX-Forwarded-For: {address}\r\n".encode(), 1)


def post_form(parts: Sequence[Part], parameters: Mapping[str, object] = NO_PARAMETERS) -> bytes:
    """Returns a POST of /predict with a multipart body (RFC 7578)."""
    return post(form(parts), f"multipart/form-data; boundary={BOUNDARY}", parameters)


def form(parts: Sequence[Part]) -> bytes:
    """Returns a multipart body with the boundary `BOUNDARY`."""
    return b"".join(map(_part, parts)) + f"--{BOUNDARY}--\r\n".encode()


def _part(part: Part) -> bytes:
    disposition = f'form-data; name="{part.name}"'
    if part.filename is not None:
        disposition += f'; filename="{part.filename}"'
    lines = [f"--{BOUNDARY}", f"Content-Disposition: {disposition}"]
    if part.media_type is not None:
        lines.append(f"Content-Type: {part.media_type}")
    return "\r\n".join([*lines, "", ""]).encode() + part.content + b"\r\n"


def _head(method: str, target: str, *headers: str | int) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [
        f"Content-Length: {header}" if isinstance(header, int) else header for header in headers
    ]
    return "\r\n".join([*lines, "", ""]).encode()
