"""Fixtures of the page tests: one server for all of them, one browser per module."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.audit_entries import SECRET
from clinic.tests.page.browser import Visit
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from tests.browser import TIMEOUT_MS, chromium, chromium_path
from tests.server_process import ServerProcess, serving

Go = Callable[..., AbstractContextManager[Visit]]

FAILED_REQUEST = "Failed to load resource"  # Chromium's console message for any 4xx and 5xx
WATCH = """
window.blobUrls = 0;
const [make, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
const living = new Set();
URL.createObjectURL = (blob) => { const url = make(blob); living.add(url); return url; };
URL.revokeObjectURL = (url) => { living.delete(url); revoke(url); };
window.livingBlobUrls = () => living.size;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def server(checkpoint_folder: Path) -> Iterator[ServerProcess]:
    """A server of the embedded model and of a tiny one that the policy does not apply to."""
    chromium_path()  # skips before the server starts
    with serving(DEFAULT_CHECKPOINT, checkpoint_folder) as server:
        server.wait_for("/readyz", 200)
        yield server


def set_retention() -> None:
    os.environ["EULERLORA_SERVE_AUDIT_RETENTION_MONTHS"] = "24"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def audited(log: Path) -> Iterator[ServerProcess]:
    """A server that records decisions and keeps its log for 24 months."""
    secret = log.with_name("secret")
    secret.write_bytes(SECRET)
    arguments = (DEFAULT_CHECKPOINT, "--audit", log, "--audit-secret", secret)
    with serving(*arguments, change=set_retention) as server:
        server.wait_for("/readyz", 200)
        yield server


@pytest.fixture
def go(browser: Any, server: ServerProcess) -> Go:
    """(url, width, scheme) -> a visit to the page; by default of the shared server."""

    def visit(
        url: str = server.url, width: int = 1280, scheme: str = "light"
    ) -> AbstractContextManager[Visit]:
        return _visit(browser, url, width, scheme)

    return visit


@contextmanager
def _visit(browser: Any, url: str, width: int, scheme: str) -> Iterator[Visit]:
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
