"""A visit to the page, and checks that hold for every visit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.browser import TIMEOUT_MS


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

    def action(self, name: str, of: str) -> Any:
        """A button of an image's entry."""
        return self.card(of).get_by_role("button", name=name)

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
        """Fails if the page contacted another host, logged an error, or stored more than a list and
        what is closed.
        """
        assert self.faults == []
        assert [url for url in self.requests if not url.startswith((self.url, "blob:"))] == []
        assert self.page.context.cookies() == []
        assert self.page.evaluate("localStorage.length") == 0
        shown = self.page.locator("article").count()
        keys = self.page.evaluate("Object.keys(sessionStorage)")
        assert len([key for key in keys if key != "closed-privacy"]) == shown
        assert self.page.evaluate("indexedDB.databases()") == []
        assert self.page.evaluate("caches.keys()") == []


def expect(locator: Any) -> Any:
    """Playwright's assertions for a locator, with a long timeout."""
    from playwright.sync_api import expect as playwright_expect  # noqa: PLC0415 - optional

    playwright_expect.set_options(timeout=TIMEOUT_MS)
    return playwright_expect(locator)
