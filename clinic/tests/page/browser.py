"""A visit to the page, and checks that hold for every visit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser import TIMEOUT_MS

FAILED_REQUEST = "Failed to load resource"  # Chromium's console message for any 4xx and 5xx
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
    """An open page of a server.

    faults: console errors and warnings. requests: requested URLs. responses: received responses.
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
        """The entry of the image with this name: its row and its card."""
        return self.page.get_by_role("article", name=name, exact=True)

    def row(self, name: str) -> Any:
        """The button that opens and closes the card of an image."""
        return self.card(name).locator(".row")

    def wait(self, number: int) -> None:
        """Waits until the list has this number of images, all of them finished."""
        expect(self.page.locator("article")).to_have_count(number)
        expect(self.page.locator("article[aria-busy=false]")).to_have_count(number)

    def change_answers(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Applies a function to every successful answer of /triage."""

        def answer(route: Any) -> None:
            response = route.fetch(timeout=TIMEOUT_MS)
            body = response.json()
            if response.ok:
                change(body)
            route.fulfill(response=response, json=body)

        self.page.route("**/triage?*", answer)

    def answers(self) -> list[Any]:
        """The successful responses of /triage so far."""
        return [
            response.json()
            for response in self.responses
            if "/triage?" in response.url and response.ok
        ]

    def check(self) -> None:
        """Fails if the page contacted another host, logged an error, or stored more than a list."""
        assert self.faults == []
        assert [url for url in self.requests if not url.startswith((self.url, "blob:"))] == []
        assert self.page.context.cookies() == []
        assert self.page.evaluate("localStorage.length") == 0
        shown = self.page.locator("article").count()
        assert self.page.evaluate("Object.keys(sessionStorage).length") == shown
        assert self.page.evaluate("indexedDB.databases()") == []
        assert self.page.evaluate("caches.keys()") == []


@contextmanager
def visiting(browser: Any, url: str, width: int, scheme: str) -> Iterator[Visit]:
    """Opens the page of a server and checks the visit at its end."""
    context = browser.new_context(
        viewport={"width": width, "height": 844 if width < 600 else 900},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(TIMEOUT_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(WATCH)
    page = context.new_page()
    visit = Visit(page, url)

    def record_message(message: Any) -> None:
        if message.type in ("error", "warning") and FAILED_REQUEST not in message.text:
            visit.faults.append(message.text)

    def record_response(response: Any) -> None:
        visit.responses.append(response)

    page.on("console", record_message)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("response", record_response)
    try:
        page.goto(url + "/")
        yield visit
        visit.check()
    finally:
        # The page abandons a request when its settings change; the handler of that request may
        # still wait for its response, which the end of the context would take away.
        page.unroute_all(behavior="wait")
        context.close()


def action(visit: Visit, name: str, of: str) -> Any:
    """A button of an image's entry."""
    return visit.card(of).get_by_role("button", name=name)


def expect(locator: Any) -> Any:
    """Playwright's assertions for a locator, with a long timeout."""
    from playwright.sync_api import expect as playwright_expect  # noqa: PLC0415 - optional

    playwright_expect.set_options(timeout=TIMEOUT_MS)
    return playwright_expect(locator)


def screenshot(page: Any, file: Path, first: str = "body", last: str = ".card") -> None:
    """Writes a screenshot from the top of the first element to the bottom of the last one.

    Narrow pages show one screen. The number of colours is reduced to keep the file small.
    """
    page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
    page.locator(first).first.evaluate("element => element.scrollIntoView()")
    size = page.viewport_size
    if size["width"] > 600:
        end = page.locator(last).first.evaluate("element => element.getBoundingClientRect().bottom")
        page.set_viewport_size({"width": size["width"], "height": round(end) + 24})
    shot = page.screenshot()
    page.set_viewport_size(size)
    Image.open(BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
