"""Request body -> one uploaded file, read with a limit and kept in memory."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from service.decode import MEDIA_TYPES, Declared
from service.errors import BodyTooLarge, InvalidUpload, MalformedBody, UnsupportedMedia

FILE_PART = "file"
MAX_PARTS = 8
MAX_FIELD_BYTES = 1024


@dataclass(frozen=True)
class Upload:
    """A file's content, and what the client says it is."""

    content: bytes
    declared: Declared


async def read_upload(request: Request, max_bytes: int) -> Upload:
    """The one file of a request: a multipart part `file`, or the body itself.

    max_bytes: of the whole body. Raises BodyTooLarge as soon as that is known, UnsupportedMedia
    for a body of another type, MalformedBody, and InvalidUpload for no file, two, or an empty one.
    """
    _check_declared_length(request, max_bytes)
    if request.headers.get("content-length", "0") == "0" and not request.headers.get(
        "transfer-encoding"
    ):
        raise InvalidUpload("wanted an image; the request has no body")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        upload = await _read_multipart(request, max_bytes)
    elif media_type in MEDIA_TYPES:
        chunks = [chunk async for chunk in _limited(request, max_bytes)]
        upload = Upload(b"".join(chunks), Declared(media_type))
    else:
        raise UnsupportedMedia(
            f"wanted multipart/form-data or one of {', '.join(MEDIA_TYPES)} as content type"
        )
    if not upload.content:
        raise InvalidUpload("the file is empty")
    return upload


def _check_declared_length(request: Request, max_bytes: int) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise BodyTooLarge(f"at most {max_bytes:,} bytes are read")


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > max_bytes:
            raise BodyTooLarge(f"at most {max_bytes:,} bytes are read")
        yield chunk


class _OneFileParser(MultiPartParser):
    """Starlette's parser, which also tells a file without a filename and a missing end."""

    ended = False

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        part = self._current_part
        if part.field_name == FILE_PART and part.file is None:
            raise InvalidUpload(f"the part {FILE_PART} has no filename; send it as a file")

    def on_end(self) -> None:
        self.ended = True


async def _read_multipart(request: Request, max_bytes: int) -> Upload:
    parser = _OneFileParser(
        request.headers,
        _limited(request, max_bytes),
        max_files=MAX_PARTS,
        max_fields=MAX_PARTS,
        max_part_size=MAX_FIELD_BYTES,
    )
    parser.spool_max_size = max_bytes  # never to disk: the root file system may be read-only
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, KeyError, UnicodeError) as error:
        raise MalformedBody("the multipart body cannot be parsed") from error
    try:
        if not parser.ended:
            raise MalformedBody("the multipart body ends before its closing boundary")
        parts = form.multi_items()
        if [name for name, _ in parts] != [FILE_PART]:
            raise InvalidUpload(f"wanted exactly one part, named {FILE_PART}; found {len(parts)}")
        part = parts[0][1]
        assert isinstance(part, UploadFile)
        return Upload(await part.read(), Declared(part.content_type, part.filename))
    finally:
        await form.close()
