"""The documentation in a browser, under its security policy."""

import pytest

from tests.browser import TIMEOUT_MS

pytestmark = pytest.mark.browser


def test_every_operation_is_shown_without_another_host_or_a_script_of_the_document(
    browser, server
) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    operations = sum(map(len, paths.values()))
    page = browser.new_page()
    faults: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(f"{server.url}/docs")
        page.locator(".opblock").nth(operations - 1).wait_for(timeout=TIMEOUT_MS)
        page.locator("#operations-predictions-predict .opblock-summary-control").click()
        page.get_by_text("Gateway Timeout").wait_for(timeout=TIMEOUT_MS)
        assert page.locator(".opblock").count() == operations
    finally:
        page.close()
    assert [url for url in requests if not url.startswith(server.url)] == []
    assert faults == []
