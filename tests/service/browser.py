"""A browser that looks at the page, and what it must never see there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000.0  # a busy machine is no fault of the page's
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
    """A look at the page of a server. faults: what the console told; hosts: who was asked."""

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def add(self, *files: dict[str, object]) -> None:
        """Chooses files, each as {name, mimeType, buffer}."""
        self.page.set_input_files("#files", list(files))

    def card(self, name: str) -> Any:
        """The card of the picture of this name."""
        return self.page.get_by_role("article", name=name, exact=True)

    def check(self) -> None:
        """Fails where something was stored, another host asked, or the console complained."""
        assert self.faults == []
        assert [url for url in self.requests if not url.startswith((self.url, "blob:"))] == []
        assert self.page.context.cookies() == []
        assert self.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
        assert self.page.evaluate("indexedDB.databases()") == []
        assert self.page.evaluate("caches.keys()") == []


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium; skips where there is none, or nothing that drives it."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


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

    page.on("console", console)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))
    try:
        page.goto(url + "/")
        yield visit
        visit.check()
    finally:
        context.close()
