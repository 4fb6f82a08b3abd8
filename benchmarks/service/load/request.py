"""HTTP requests as bytes, rendered once: a client that shares the cores must cost little."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

BOUNDARY = "a-boundary-of-the-benchmarks"
NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True)
class Part:
    """One part of a multipart body; a field where it has no filename."""

    name: str
    content: bytes
    filename: str | None = None
    media_type: str | None = None


def get(path: str) -> bytes:
    """A request without a body."""
    return _head("GET", path)


def post(
    content: bytes,
    media_type: str = "image/jpeg",
    parameters: Mapping[str, object] = NOTHING,
    length: int | None = None,
) -> bytes:
    """A POST of /predict. length: to be declared where it is not the content's own."""
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    declared = len(content) if length is None else length
    head = _head("POST", f"/predict{query}", f"Content-Type: {media_type}", declared)
    return head + content


def post_form(parts: Sequence[Part], parameters: Mapping[str, object] = NOTHING) -> bytes:
    """The same with a multipart body (RFC 7578)."""
    return post(form(parts), f"multipart/form-data; boundary={BOUNDARY}", parameters)


def form(parts: Sequence[Part]) -> bytes:
    """A multipart body of these parts, within `BOUNDARY`."""
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
    lines += [f"Content-Length: {each}" if isinstance(each, int) else each for each in headers]
    return "\r\n".join([*lines, "", ""]).encode()
