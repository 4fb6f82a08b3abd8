"""Tests in the system's Chromium, driven by Playwright, with accessibility checks by axe-core."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
TIMEOUT_MS = 60_000.0  # for busy machines


def chromium_path() -> str:
    """The path of the system's Chromium; skips the test without it or Playwright."""
    pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    return path


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields the system's Chromium; skips the test without it or Playwright."""
    path = chromium_path()
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def assert_accessible(axe: Any, page: Any) -> None:
    """Fails if axe-core reports a violation with impact serious or critical."""
    violations = [
        violation
        for violation in axe.run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert [(item["id"], [node["html"] for node in item["nodes"]]) for item in violations] == []
