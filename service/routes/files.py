"""Files for a browser, and the documentation of the interface (`GET /docs`).

Files are read and compressed once, for the first request.
"""

import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Self

from fastapi import APIRouter, HTTPException, Request, Response

INDEX = "index.html"
TYPES_BY_EXTENSION = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}

_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",  # clients validate their cache at every load
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_SWAGGER_UI = "fastapi_swagger.resources"  # the published files of Swagger UI, unchanged
_SWAGGER_UI_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
_OWN_FILES = (INDEX, "start.js", "style.css")


@dataclass(frozen=True)
class PageFile:
    """A file for a browser.

    Attributes:
        tag: The entity tag, a hash of the content. It is weak, because the file has it in both
            encodings.
        compressed: The content with gzip.
        language: Of a page that exists in several languages, as a tag.
    """

    content: bytes
    media_type: str
    tag: str
    compressed: bytes
    language: str | None = None

    @classmethod
    def of(cls, content: bytes, media_type: str, language: str | None = None) -> Self:
        """The file with the tag of its content."""
        tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, media_type, tag, gzip.compress(content, mtime=0), language)


def file_routes(
    index: str,
    folder: str,
    read: Callable[[], Mapping[str, PageFile]],
    index_name: Callable[[Request], str] = lambda _: INDEX,
) -> APIRouter:
    """The routes of a page at the path `index` and of its files in `folder`.

    Args:
        index: The path of the page.
        folder: That of its files.
        read: Returns the files by name; called once, by the first request.
        index_name: The name of the page for a request, such as that of its language.
    """
    router = APIRouter(include_in_schema=False)
    by_name = cache(read)

    @router.get(index)
    async def page(request: Request) -> Response:
        return _file_response(request, by_name()[index_name(request)])

    @router.get(f"{folder}/{{name}}")
    async def page_file(request: Request, name: str) -> Response:
        file = by_name().get(name)
        if file is None or file.media_type == TYPES_BY_EXTENSION[".html"]:
            raise HTTPException(404)
        return _file_response(request, file)

    return router


def _file_response(request: Request, file: PageFile) -> Response:
    """The file, or 304 if the client has the current version (RFC 9110, 13.1.2)."""
    headers = {**_HEADERS, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if file.language is not None:
        headers |= {"Content-Language": file.language, "Vary": "Accept-Encoding, Accept-Language"}
    cached_tags = request.headers.get("if-none-match", "")
    if file.tag in (tag.strip() for tag in cached_tags.split(",")):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, headers=headers, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)


def documentation_files() -> Mapping[str, PageFile]:
    own, published = files("service").joinpath("documentation"), files(_SWAGGER_UI)
    sources = {**dict.fromkeys(_OWN_FILES, own), **dict.fromkeys(_SWAGGER_UI_FILES, published)}
    return {
        name: PageFile.of(
            folder.joinpath(name).read_bytes(), TYPES_BY_EXTENSION[PurePath(name).suffix]
        )
        for name, folder in sources.items()
    }
