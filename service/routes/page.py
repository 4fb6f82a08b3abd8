"""`GET /` and `GET /page/{name}`: the triage page, whose files are read once, at the start."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

from eulerlora_client.policy.wording import WARNING

INDEX = "index.html"
WARNING_PLACE = "{{ WARNING }}"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
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
HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for again: a new release is seen at once
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page as it is sent; the tag changes with its content."""

    content: bytes
    media_type: str
    tag: str


def page_routes() -> APIRouter:
    """The routes of the page and its files."""
    found = page_files()
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        """The page."""
        return _response(request, found[INDEX])

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def page_file(request: Request, name: str) -> Response:
        """A file that the page asks for."""
        if name not in found or name == INDEX:
            raise HTTPException(404)
        return _response(request, found[name])

    return router


def page_files() -> Mapping[str, PageFile]:
    """The page's files by name, with the warning in the one that has a place for it."""
    return dict(_read())


def _read() -> Iterator[tuple[str, PageFile]]:
    for file in files("service").joinpath("page").iterdir():
        media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is None:  # what an editor or a desktop may leave there
            continue
        text = file.read_text(encoding="utf-8").replace(WARNING_PLACE, escape(WARNING))
        content = text.encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        yield file.name, PageFile(content, media_type, tag)


def _response(request: Request, file: PageFile) -> Response:
    """The file, or 304 where the client has it already (RFC 9110, 13.1.2)."""
    headers = {**HEADERS, "ETag": file.tag}
    known = request.headers.get("if-none-match", "")
    if file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
