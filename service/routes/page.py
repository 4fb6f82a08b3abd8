"""`GET /` and `GET /page/{name}`: the triage page. Its files are read once, at start."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Self

from fastapi import APIRouter, HTTPException, Request, Response

from eulerlora_client.policy.performance import (
    DETAIL_NOTE,
    EXPLANATION,
    UNKNOWN,
    Performance,
    Table,
    performance,
)
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.wording import WARNING

INDEX = "index.html"
WARNING_PLACEHOLDER = "{{ WARNING }}"
PERFORMANCE_PLACEHOLDER = "{{ PERFORMANCE }}"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
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
    "Cache-Control": "no-cache",  # clients validate their cache at every load
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page; the entity tag depends on its content."""

    content: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> Self:
        """Returns the file with the tag of its content."""
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def page_routes(policy: Policy) -> APIRouter:
    """Returns the routes of the page and its files. policy: the page shows its performance."""
    by_name = page_files(policy)
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        """Returns the page."""
        return file_response(request, by_name[INDEX])

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def page_file(request: Request, name: str) -> Response:
        """Returns a file that the page uses."""
        if name not in by_name or name == INDEX:
            raise HTTPException(404)
        return file_response(request, by_name[name])

    return router


def page_files(policy: Policy) -> Mapping[str, PageFile]:
    """Returns the files of the page by name, with the warning and the policy's performance."""
    inserted = {
        WARNING_PLACEHOLDER: escape(WARNING),
        PERFORMANCE_PLACEHOLDER: performance_html(performance(policy)),
    }
    return dict(_read(inserted))


def _read(inserted: Mapping[str, str]) -> Iterator[tuple[str, PageFile]]:
    """Yields names and files. inserted: HTML by placeholder."""
    for file in files("service").joinpath("page").iterdir():
        media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is None:  # skips folders, and files left by editors and desktops
            continue
        text = file.read_text(encoding="utf-8")
        for placeholder, content in inserted.items():
            text = text.replace(placeholder, content)
        yield file.name, PageFile.of(text.encode(), media_type)


def performance_html(measured: Performance | None) -> str:
    """Returns the tables of a policy's performance; a sentence if there are none."""
    if measured is None:
        return _paragraph(UNKNOWN)
    details = (
        _paragraph(measured.origin),
        _paragraph(EXPLANATION),
        _table(measured.details, "Lesions by disposition"),
        _paragraph(DETAIL_NOTE),
    )
    return (
        _table(measured.summary, "Sensitivity and specificity of the policy, by lesion")
        + f"<details><summary>Details of these figures</summary>{''.join(details)}</details>"
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(table: Table, caption: str) -> str:
    """Returns a table in a frame that scrolls; the first cell of a row is its heading."""
    header = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in table.rows
    )
    return (
        f'<div class="frame" tabindex="0" role="group" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{header}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def file_response(request: Request, file: PageFile) -> Response:
    """Returns the file, or 304 if the client has the current version (RFC 9110, 13.1.2)."""
    headers = {**HEADERS, "ETag": file.tag}
    cached_tags = request.headers.get("if-none-match", "")
    if file.tag in (tag.strip().removeprefix("W/") for tag in cached_tags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
