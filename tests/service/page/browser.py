"""A look at the page, and what it must never see there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser import PATIENCE_MS

A_PROBLEM_WAS_ANSWERED = "Failed to load resource"  # the browser's own words for any 4xx and 5xx
WATCH = """
window.blobUrls = 0;
const [make, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
const living = new Set();
URL.createObjectURL = (blob) => { const url = make(blob); living.add(url); return url; };
URL.revokeObjectURL = (url) => { living.delete(url); revoke(url); };
window.livingBlobUrls = () => living.size;
"""


@dataclass(frozen=True)
class Visit:
    """A look at the page of a server.

    faults: what the console told. requests: the addresses that were asked. responses: what came.
    """

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    responses: list[Any] = field(default_factory=list)

    def add(self, *files: dict[str, object]) -> None:
        """Chooses files, each as {name, mimeType, buffer}."""
        self.page.set_input_files("#files", list(files))

    def card(self, name: str) -> Any:
        """The card of the picture of this name."""
        return self.page.get_by_role("article", name=name, exact=True)

    def answers(self) -> list[Any]:
        """What /triage answered so far, problems left out."""
        return [each.json() for each in self.responses if "/triage?" in each.url and each.ok]

    def check(self) -> None:
        """Fails where something was stored, another host asked, or the console complained."""
        assert self.faults == []
        assert [url for url in self.requests if not url.startswith((self.url, "blob:"))] == []
        assert self.page.context.cookies() == []
        assert self.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
        assert self.page.evaluate("indexedDB.databases()") == []
        assert self.page.evaluate("caches.keys()") == []


@contextmanager
def visiting(browser: Any, url: str, width: int, scheme: str) -> Iterator[Visit]:
    """A visit to a server's page, which must leave nothing to complain of."""
    context = browser.new_context(
        viewport={"width": width, "height": 844 if width < 600 else 900},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(WATCH)
    page = context.new_page()
    visit = Visit(page, url)

    def console(message: Any) -> None:
        if message.type in ("error", "warning") and A_PROBLEM_WAS_ANSWERED not in message.text:
            visit.faults.append(message.text)

    def came(response: Any) -> None:
        visit.responses.append(response)

    page.on("console", console)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("response", came)
    try:
        page.goto(url + "/")
        yield visit
        visit.check()
    finally:
        context.close()


def expect(locator: Any) -> Any:
    """What a locator is expected to be; waited for with patience."""
    from playwright.sync_api import expect as expecting  # noqa: PLC0415 - skipped without it

    expecting.set_options(timeout=PATIENCE_MS)
    return expecting(locator)


def screenshot(page: Any, file: Path, first: str = "body", last: str = ".card") -> None:
    """Writes a picture of the page from the top of one element to the bottom of another, the
    first of their kind; a telephone shows one screen. In few colours, so that the file is small.
    """
    page.locator(first).first.evaluate("each => each.scrollIntoView()")
    size = page.viewport_size
    if size["width"] > 600:
        end = page.locator(last).first.evaluate("each => each.getBoundingClientRect().bottom")
        page.set_viewport_size({"width": size["width"], "height": round(end) + 24})
    shot = page.screenshot()
    page.set_viewport_size(size)
    Image.open(BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
