"""What tests of the page share: a browser, a server, and a look at the page."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from service.commands import EMBEDDED
from tests.browser import chromium
from tests.server_process import ServerProcess, serving
from tests.service.page.browser import Visit, visiting

Go = Callable[..., AbstractContextManager[Visit]]

SCREENSHOTS = "EULERLORA_SCREENSHOTS"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser: Any, checkpoint_folder: Path) -> Iterator[ServerProcess]:
    """One that serves the embedded model, and a tiny one that the policy does not fit."""
    with serving(EMBEDDED, checkpoint_folder) as server:
        server.wait_for("/readyz", 200)
        yield server


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Where screenshots go: the folder that EULERLORA_SCREENSHOTS names, docs/images for one."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))


@pytest.fixture
def go(browser: Any, server: ServerProcess) -> Go:
    """(url, width, scheme) -> a visit to the page, of the module's server if none is told."""

    def visit(
        url: str = server.url, width: int = 1280, scheme: str = "light"
    ) -> AbstractContextManager[Visit]:
        return visiting(browser, url, width, scheme)

    return visit
