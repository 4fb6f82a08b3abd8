"""Request body -> the many files of one request, read with a limit and kept in memory."""

from collections.abc import AsyncGenerator

from fastapi import Request
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from service.decode import Declared
from service.errors import BodyTooLarge, InvalidUpload, MalformedBody, UnsupportedMedia
from service.upload import Upload

FILES_PART = "files"


async def read_uploads(request: Request, max_bytes: int, max_files: int) -> list[Upload]:
    """The files of a multipart request's parts `files`, in order; an empty one is among them.

    max_bytes: of the whole body. Raises BodyTooLarge as soon as that is known, UnsupportedMedia
    for a body that is not multipart, MalformedBody, and InvalidUpload for no file, too many, or a
    part of another kind.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise BodyTooLarge(f"at most {max_bytes:,} bytes are read")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise UnsupportedMedia("wanted multipart/form-data as content type")
    parser = _FilesParser(
        request.headers, _limited(request, max_bytes), max_files=max_files, max_fields=1
    )
    parser.spool_max_size = max_bytes  # never to disk: the root file system may be read-only
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, KeyError, UnicodeError) as error:
        raise MalformedBody("the multipart body cannot be parsed") from error
    try:
        if not parser.ended:
            raise MalformedBody("the multipart body ends before its closing boundary")
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        if not files:
            raise InvalidUpload(f"wanted parts named {FILES_PART}; found none")
        return [
            Upload(await each.read(), Declared(each.content_type, each.filename)) for each in files
        ]
    finally:
        await form.close()


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > max_bytes:
            raise BodyTooLarge(f"at most {max_bytes:,} bytes are read")
        yield chunk


class _FilesParser(MultiPartParser):
    """Starlette's parser, which tells at once a part that is not wanted, and a missing end."""

    ended = False

    def on_headers_finished(self) -> None:
        if self._current_files == self.max_files:
            raise InvalidUpload(f"at most {self.max_files} files are answered in one request")
        super().on_headers_finished()
        part = self._current_part
        if part.field_name != FILES_PART or part.file is None:
            raise InvalidUpload(f"wanted files only, in parts named {FILES_PART}")

    def on_end(self) -> None:
        self.ended = True
