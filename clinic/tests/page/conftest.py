"""Fixtures of the page tests: one server for all of them, one browser per module."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.audit_entries import SECRET
from clinic.tests.page.browser import Visit, visiting
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from tests.browser import chromium, chromium_path
from tests.server_process import ServerProcess, serving

Go = Callable[..., AbstractContextManager[Visit]]

SCREENSHOTS = "EULERLORA_SCREENSHOTS"


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
def images(tmp_path: Path) -> Path:
    """The folder for screenshots: EULERLORA_SCREENSHOTS (for example docs/images), or temporary."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))


@pytest.fixture
def go(browser: Any, server: ServerProcess) -> Go:
    """(url, width, scheme) -> a visit to the page; by default of the shared server."""

    def visit(
        url: str = server.url, width: int = 1280, scheme: str = "light"
    ) -> AbstractContextManager[Visit]:
        return visiting(browser, url, width, scheme)

    return visit
