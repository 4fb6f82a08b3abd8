"""HTTP requests as the bytes that a client sends."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import httpx

BOUNDARY = "a-boundary-of-the-tests"
NO_PARAMETERS: Mapping[str, object] = {}
FormFile = tuple[str, tuple[str, bytes, str]]
"""A field of a form, and the name, content and media type of its file."""


def get(path: str) -> bytes:
    return _head("GET", path)


def post(
    content: bytes,
    media_type: str = "image/jpeg",
    parameters: Mapping[str, object] = NO_PARAMETERS,
    length: int | None = None,
) -> bytes:
    """A request to /predict. length: declared length; None declares the content's."""
    query = f"?{urlencode(parameters)}" if parameters else ""
    declared = len(content) if length is None else length
    headers = (f"Content-Type: {media_type}", f"Content-Length: {declared}")
    return _head("POST", f"/predict{query}", *headers) + content


def post_form(files: Sequence[FormFile]) -> bytes:
    return post(form(files), f"multipart/form-data; boundary={BOUNDARY}")


def form(files: Sequence[FormFile]) -> bytes:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return httpx.Request("POST", "http://host", files=files, headers=headers).read()


def _head(method: str, target: str, *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode()
