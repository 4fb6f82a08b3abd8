"""The page (`GET /` and `/page/{name}`) and the documentation of the interface (`GET /docs`).

Files are read once, for the first request.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Self

from fastapi import APIRouter, HTTPException, Request, Response
from jinja2 import Environment, StrictUndefined

from eulerlora_client.image_formats import KINDS, SNIFFED_BYTES
from eulerlora_contract.policy import results as texts
from eulerlora_contract.policy.policy import MeasuredEvidence, Policy, default_policy
from eulerlora_contract.policy.results import WARNING

INDEX = "index.html"
IMAGES = {
    "HAM10000": "dermatoscopic images of the clinics that the model learned from",
    "PH2": "dermatoscopic images of another clinic",
    "PAD-UFES-20": "photographs taken with phones",
}
"""What the images of a data set are, by the first word of its name."""

_FEW_SPARED = 0.1
"""A specificity below which the policy does not help to order images."""

_TYPES_BY_EXTENSION = {
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
HEADERS = {
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
    """A file of the page; the entity tag depends on its content."""

    content: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> Self:
        """Returns the file with the tag of its content."""
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@dataclass(frozen=True)
class MeasuredRow:
    """What the page says about the policy on one data set.

    Attributes:
        images: What they are.
        helps: The specificity is at least FEW_SPARED.
    """

    measured: MeasuredEvidence
    images: str
    helps: bool


def file_routes(index: str, folder: str, read: Callable[[], Mapping[str, PageFile]]) -> APIRouter:
    """Returns the routes of a page at the path `index` and of its files in `folder`.

    `read`: returns the files by name; called once, by the first request.
    """
    router = APIRouter(include_in_schema=False)
    by_name = cache(read)

    @router.get(index)
    async def page(request: Request) -> Response:
        return _file_response(request, by_name()[INDEX])

    @router.get(f"{folder}/{{name}}")
    async def page_file(request: Request, name: str) -> Response:
        """Returns a file that the page uses."""
        if name not in by_name() or name == INDEX:
            raise HTTPException(404)
        return _file_response(request, by_name()[name])

    return router


def page_files(
    policy: Policy, classes: Collection[str], is_audited: bool
) -> Mapping[str, PageFile]:
    """Returns the files of the page by name.

    Args:
        policy: The page takes the words for its target, and shows its performance.
        classes: Of the default model; without those of the target, the page classifies only.
        is_audited: Whether decisions are recorded.
    """
    by_name = dict(_read())
    index = by_name[INDEX]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, data_name=data_name)
    page = environment.from_string(index.content.decode()).render(
        applies=set(policy.target.classes) <= set(classes),
        of_skin=policy.target.classes == default_policy().target.classes,
        is_audited=is_audited,
        policy=policy,
        file_kinds={"length": SNIFFED_BYTES, "kinds": [asdict(kind) for kind in KINDS]},
        modules=sorted(name for name in by_name if name.endswith(".js")),
        measured=measured_rows(policy),
        performance=texts.performance(policy),
        texts=texts,
        WARNING=WARNING,
    )
    return by_name | {INDEX: PageFile.of(page.encode(), index.media_type)}


def measured_rows(policy: Policy) -> list[MeasuredRow]:
    """Returns the measurements of the policy, in their order; none if there are none."""
    measured = () if policy.evidence is None else policy.evidence.measured
    return [
        MeasuredRow(
            one,
            IMAGES.get(one.data.replace(",", " ").split()[0], ""),
            one.others.specificity >= _FEW_SPARED,
        )
        for one in measured
    ]


def _read() -> Iterator[tuple[str, PageFile]]:
    """Yields names and files as they are stored."""
    for file in files("service").joinpath("page").iterdir():
        media_type = _TYPES_BY_EXTENSION.get(PurePath(file.name).suffix)
        if media_type is not None:  # skips folders, and files left by editors and desktops
            yield file.name, PageFile.of(file.read_bytes(), media_type)


def data_name(text: str) -> str:
    """Returns the name of a data set without that of its split, as text.js of the page."""
    return re.sub(r", [\w-]+ split\b", "", text)


def percent(share: float) -> str:
    """Returns a share in [0, 1] in percent, with one digit unless it is whole."""
    return f"{100 * share:.1f}".removesuffix(".0") + "\N{NO-BREAK SPACE}%"


def _file_response(request: Request, file: PageFile) -> Response:
    """Returns the file, or 304 if the client has the current version (RFC 9110, 13.1.2)."""
    headers = {**HEADERS, "ETag": file.tag}
    cached_tags = request.headers.get("if-none-match", "")
    if file.tag in (tag.strip().removeprefix("W/") for tag in cached_tags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def documentation_files() -> Mapping[str, PageFile]:
    """Returns the files of the documentation by name."""
    own, published = files("service").joinpath("page", "docs"), files(_SWAGGER_UI)
    sources = {**dict.fromkeys(_OWN_FILES, own), **dict.fromkeys(_SWAGGER_UI_FILES, published)}
    return {
        name: PageFile.of(
            folder.joinpath(name).read_bytes(), _TYPES_BY_EXTENSION[PurePath(name).suffix]
        )
        for name, folder in sources.items()
    }
