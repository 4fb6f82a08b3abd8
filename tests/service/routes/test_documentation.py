"""GET /docs and its files."""

import re

import pytest

from service.routes.page import SWAGGER_UI_FILES, documentation_files

NAMES = sorted(set(documentation_files()) - {"index.html"})


def test_the_documentation_has_the_security_policy_of_the_page(client) -> None:
    page, documentation = client.get("/"), client.get("/docs")
    assert documentation.status_code == 200
    assert documentation.headers["Content-Type"] == "text/html; charset=utf-8"
    for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"):
        assert documentation.headers[name] == page.headers[name]
    assert "unsafe" not in documentation.headers["Content-Security-Policy"]


def test_the_documentation_references_only_its_files_and_the_icon_of_the_page(client) -> None:
    text = client.get("/docs").text
    referenced = re.findall(r'<(?:script|link)\b[^>]*?(?:src|href)="([^"]+)"', text)
    assert sorted(referenced) == sorted([*(f"docs/{name}" for name in NAMES), "page/icon.svg"])
    for path in referenced:
        assert client.get(f"/{path}").status_code == 200
    assert not re.search(r"<script>|<style|style=|\son\w+=", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_a_tag_and_its_media_type(client, name) -> None:
    first = client.get(f"/docs/{name}")
    again = client.get(f"/docs/{name}", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    kind = "javascript" if name.endswith(".js") else "css"
    assert first.headers["Content-Type"] == f"text/{kind}; charset=utf-8"


def test_the_files_of_swagger_ui_are_of_a_release_of_version_5() -> None:
    script = documentation_files()[SWAGGER_UI_FILES[0]].content
    assert re.search(rb'PACKAGE_VERSION:"5\.\d+\.\d+"', script)


@pytest.mark.parametrize(
    "path", ["/docs/index.html", "/docs/oauth2-redirect", "/docs/..%2Fmain.js", "/redoc"]
)
def test_no_other_page_is_served(client, refused, path) -> None:
    refused(client.get(path), 404, "not_found")
