"""Request body -> uploaded files, kept in memory; how long a body may be is decided before it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from eulerlora_client.contract.problems import (
    InvalidUpload,
    MalformedBody,
    Problem,
    UnsupportedMedia,
)
from service.decoding.decode import MEDIA_TYPES, Declared

FILE_PART = "file"
FILES_PART = "files"
MULTIPART = "multipart/form-data"
MAX_PARTS = 8
MAX_FIELD_BYTES = 1024


@dataclass(frozen=True)
class Upload:
    """A file's content, and what the client says it is."""

    content: bytes
    declared: Declared


async def read_file(request: Request) -> Upload:
    """The one file of a request: a multipart part `file`, or the body itself.

    Raises UnsupportedMedia for a body of another type, MalformedBody, and InvalidUpload for no
    file, two, or an empty one.
    """
    media_type = _media_type(request)
    if media_type == MULTIPART:
        too_many = MalformedBody(f"at most {MAX_PARTS} parts are read")
        uploads = await _read_form(request, FILE_PART, MAX_PARTS, too_many)
        if len(uploads) != 1:
            raise InvalidUpload(f"wanted one file; found {len(uploads)}")
        upload = uploads[0]
    elif media_type in MEDIA_TYPES:
        chunks = [chunk async for chunk in request.stream()]
        upload = Upload(b"".join(chunks), Declared(media_type))
    else:
        raise UnsupportedMedia(
            f"wanted {MULTIPART} or one of {', '.join(MEDIA_TYPES)} as content type"
        )
    if not upload.content:
        raise InvalidUpload("the file is empty")
    return upload


async def read_files(request: Request, max_files: int) -> list[Upload]:
    """The files of a multipart request, all in parts `files`, in order; some may be empty.

    Raises UnsupportedMedia for a body that is not multipart, MalformedBody, and InvalidUpload for
    no file, more than `max_files`, or another part among them.
    """
    if _media_type(request) != MULTIPART:
        raise UnsupportedMedia(f"wanted {MULTIPART} as content type")
    too_many = InvalidUpload(f"at most {max_files} files are answered in one request")
    uploads = await _read_form(request, FILES_PART, max_files, too_many)
    if not uploads:
        raise InvalidUpload(f"wanted files in parts named {FILES_PART}; found none")
    return uploads


def _media_type(request: Request) -> str:
    """Of the body, without its parameters. Raises InvalidUpload where there is no body."""
    length = request.headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in request.headers:
        raise InvalidUpload("wanted an image; the request has no body")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_form(
    request: Request, field: str, max_parts: int, too_many: Problem
) -> list[Upload]:
    """The files of a form that has no other parts. Raises `too_many` for more than `max_parts`."""
    parser = _FormParser(request, field, max_parts, too_many)
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, KeyError, UnicodeError) as error:
        raise MalformedBody("the multipart body cannot be parsed") from error
    try:
        uploads = []
        for name, part in form.multi_items():
            if name != field or not isinstance(part, UploadFile):
                raise InvalidUpload(f"wanted files only, in parts named {field}")
            uploads.append(Upload(await part.read(), Declared(part.content_type, part.filename)))
        return uploads
    finally:
        await form.close()


class _FormParser(MultiPartParser):
    """Starlette's parser, which also tells one part too many, no filename, and a missing end."""

    spool_max_size = 0  # never to disk: the root file system may be read-only

    def __init__(self, request: Request, field: str, max_parts: int, too_many: Problem) -> None:
        stream = self._to_its_end(request)
        super().__init__(request.headers, stream, max_part_size=MAX_FIELD_BYTES)
        self._ended = False
        self._field = field
        self._max_parts = max_parts
        self._too_many = too_many

    def on_headers_finished(self) -> None:
        if len(self.items) == self._max_parts:
            raise self._too_many
        super().on_headers_finished()
        part = self._current_part
        if part.field_name == self._field and part.file is None:
            raise InvalidUpload(f"the part {self._field} has no filename; send it as a file")

    def on_end(self) -> None:
        self._ended = True

    async def _to_its_end(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The body; its fault is raised while `parse` can still close the part that is cut."""
        async for chunk in request.stream():
            yield chunk
        if not self._ended:
            raise MalformedBody("the multipart body ends before its closing boundary")
