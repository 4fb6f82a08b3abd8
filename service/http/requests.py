"""Parsing of requests: the query, and the files in the body, in memory.

`middleware` has bounded the size of the body.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from eulerlora_contract.problems import (
    InvalidParameter,
    InvalidUpload,
    MalformedBody,
    Problem,
    UnsupportedMedia,
)
from service.decoding.formats import NEUTRAL, Declared, formats_by_media_type, without_parameters

_Query = TypeVar("_Query", bound=BaseModel)

FILE_PART = "file"
FILES_PART = "files"
_MULTIPART = "multipart/form-data"
_MAX_PARTS = 8
_MAX_FIELD_BYTES = 1024
_MAX_HEADER_PARAMETERS = 16
_MAX_QUERY_PARAMETERS = 50
_USUAL_NAMES = {
    "image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png",
    "binary/octet-stream": "application/octet-stream",
}  # fmt: skip
"""Of media types that clients send under other names."""


def parsed_query(request: Request, query_type: type[_Query]) -> _Query:
    """The query of a request, of the parameters that `query_type` declares, each sent once at most.

    Raises:
        InvalidParameter: For too many parameters, and for one that is sent twice.
        RequestValidationError: For an unknown parameter or a wrong value.
    """
    if request.scope["query_string"].count(b"&") >= _MAX_QUERY_PARAMETERS:
        raise InvalidParameter(f"expected at most {_MAX_QUERY_PARAMETERS} parameters")
    sent = request.query_params.multi_items()
    counts = Counter(name for name, _ in sent)
    for name in query_type.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: expected once, got {counts[name]} times")
    with query_errors():
        return query_type.model_validate(dict(sent))


@contextmanager
def query_errors() -> Iterator[None]:
    """Converts a ValidationError of a query into a RequestValidationError.

    Keeps only the parameter's name of each location; the rest names pydantic's types.
    """
    try:
        yield
    except ValidationError as error:
        errors = [{**fault, "loc": fault["loc"][:1]} for fault in error.errors()]
        raise RequestValidationError(errors) from error


class RequestRoute(APIRoute):
    """A route whose function takes the request and returns the response: nothing is prepared."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


@dataclass(frozen=True)
class Upload:
    """The content of a file, with its declared media type and name."""

    content: bytes
    declared: Declared


async def read_file(request: Request) -> Upload:
    """The one file of a request: a multipart part `file`, or the body itself.

    The content decides what an image is, so that a body may be of any image type, or of none.

    Raises:
        UnsupportedMedia: For other media types.
        MalformedBody: For a multipart body that cannot be parsed.
        InvalidUpload: Unless there is exactly one non-empty file.
    """
    media_type = _media_type(request)
    if media_type == _MULTIPART:
        too_many = MalformedBody(f"expected at most {_MAX_PARTS} parts")
        uploads = await _read_form(request, FILE_PART, _MAX_PARTS, too_many)
        if len(uploads) != 1:
            raise InvalidUpload(f"expected one file, got {len(uploads)}")
        upload = uploads[0]
    elif media_type in {*NEUTRAL, *formats_by_media_type()} or media_type.startswith("image/"):
        chunks = [chunk async for chunk in request.stream()]
        upload = Upload(b"".join(chunks), Declared(media_type))
    else:
        raise UnsupportedMedia(
            f"expected the content type {_MULTIPART}, one of an image, or application/octet-stream"
        )
    if not upload.content:
        raise InvalidUpload("the file is empty")
    return upload


async def read_files(request: Request, max_files: int) -> list[Upload]:
    """The files of a multipart request in parts `files`, in order; they may be empty.

    Raises:
        UnsupportedMedia: For other media types.
        MalformedBody: For a multipart body that cannot be parsed.
        InvalidUpload: For no file, more than `max_files`, or parts with other names.
    """
    if _media_type(request) != _MULTIPART:
        raise UnsupportedMedia(f"expected the content type {_MULTIPART}")
    too_many = InvalidUpload(f"expected at most {max_files} files")
    uploads = await _read_form(request, FILES_PART, max_files, too_many)
    if not uploads:
        raise InvalidUpload(f"expected files in parts named {FILES_PART}, got none")
    return uploads


def _media_type(request: Request) -> str:
    """The media type of the body, without parameters.

    Raises:
        InvalidUpload: Without a body.
    """
    length = request.headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in request.headers:
        raise InvalidUpload("the file is empty: the request has no body")
    return _usual(request.headers.get("content-type"))


def _usual(media_type: str | None) -> str:
    name = without_parameters(media_type or "")
    return _USUAL_NAMES.get(name, name)


async def _read_form(
    request: Request, field: str, max_parts: int, too_many: Problem
) -> list[Upload]:
    """Reads the files of a form; raises `too_many` for more than `max_parts` parts."""
    parser = _FormParser(request, field, max_parts, too_many)
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, KeyError, ValueError) as error:
        raise MalformedBody("the multipart body cannot be parsed") from error
    try:
        uploads = []
        for name, part in form.multi_items():
            if name != field or not isinstance(part, UploadFile):
                raise InvalidUpload(f"expected only files in parts named {field}")
            declared = Declared(_usual(part.content_type), part.filename)
            uploads.append(Upload(await part.read(), declared))
        return uploads
    finally:
        await form.close()


class _FormParser(MultiPartParser):
    """Starlette's parser with checks of the number of parts, filenames, and the last boundary."""

    spool_max_size = 0  # no files on disk: the file system may be read-only

    def __init__(self, request: Request, field: str, max_parts: int, too_many: Problem) -> None:
        content_type = request.headers["Content-Type"]
        _check_parameters(content_type)
        _, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary", b"").decode("latin-1")
        # Without a charset: Python remembers the name of every one that it does not know.
        headers = Headers({"Content-Type": f'{_MULTIPART}; boundary="{boundary}"'})
        stream = self._checked_stream(request)
        super().__init__(headers, stream, max_part_size=_MAX_FIELD_BYTES)
        self._ended = False
        self._field = field
        self._max_parts = max_parts
        self._too_many = too_many

    def on_headers_finished(self) -> None:
        if len(self.items) == self._max_parts:
            raise self._too_many
        part = self._current_part
        _check_parameters((part.content_disposition or b"").decode("latin-1"))
        part.content_disposition = _with_filename(part.content_disposition)
        super().on_headers_finished()
        if part.field_name == self._field and part.file is None:
            raise InvalidUpload(f"expected a filename in the part {self._field}, got none")

    def on_end(self) -> None:
        self._ended = True

    async def _checked_stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yields the body; raises within `parse`, which then closes an incomplete part."""
        async for chunk in request.stream():
            yield chunk
        if not self._ended:
            raise MalformedBody("expected a closing boundary at the end of the multipart body")


def _check_parameters(header: str) -> None:
    """Raises MalformedBody for a header whose parameters may take long to parse.

    The parsers search the whole header again for each semicolon in a quotation.
    """
    if header.count(";") > _MAX_HEADER_PARAMETERS:
        raise MalformedBody(f"expected at most {_MAX_HEADER_PARAMETERS} parameters in a header")


def _with_filename(disposition: bytes | None) -> bytes | None:
    """Adds `filename` to the header of a part that has only the form of RFC 8187, `filename*`.

    Its letters, digits, dots and hyphens are kept: of a name, the extension alone matters. Its
    charset is not looked up, because Python remembers the name of every one that it does not know.
    Raises ValueError for parameters that contradict each other.
    """
    if disposition is None or b"filename*" not in disposition.lower():
        return disposition
    header = Message()
    header["Content-Disposition"] = disposition.decode("latin-1")
    try:
        parameters = header.get_params([], "content-disposition")
    except TypeError as error:  # of `filename*` beside `filename*0`
        raise ValueError("expected one filename") from error
    names = [value for name, value in parameters if name.lower() == "filename"]
    if not names or any(isinstance(name, str) for name in names):  # an extended one is a tuple
        return disposition
    text = names[0][2]  # after charset and language
    name = re.sub(r"[^A-Za-z0-9.-]", "_", text)
    return disposition + f'; filename="{name}"'.encode()


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels its block when the client disconnects.

    The body must have been read: this block consumes all further messages of the request.

    Raises:
        ClientDisconnect: After the cancellation.
    """

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        timeout.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as timeout:  # expires on disconnect
            watcher = asyncio.create_task(watch())
            try:
                yield
            finally:
                watcher.cancel()
    except TimeoutError as error:
        if timeout.expired():
            raise ClientDisconnect from error
        raise
