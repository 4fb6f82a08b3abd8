"""GET / and GET /page/{name}."""

import re
from html import escape
from importlib.resources import files

import pytest

from eulerlora_client.policy.wording import WARNING
from service.routes.page import page_files

NAMES = sorted(set(page_files()) - {"index.html"})


def test_the_page_is_html_that_carries_the_warning(client) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert escape(WARNING) in response.text
    assert "{{" not in response.text


def test_the_browser_may_load_only_from_this_server_and_may_not_be_framed(client) -> None:
    headers = client.get("/").headers
    assert headers["Content-Security-Policy"].split("; ") == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in NAMES)])
def test_every_file_has_the_same_headers_and_is_sent_once(client, path) -> None:
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": f'"other", {first.headers["ETag"]}'})
    changed = client.get(path, headers={"If-None-Match": '"other"'})
    assert (first.status_code, again.status_code, changed.status_code) == (200, 304, 200)
    assert first.content and not again.content
    for name in ("Content-Security-Policy", "X-Content-Type-Options", "Cache-Control", "ETag"):
        assert first.headers[name] == again.headers[name] == changed.headers[name]
    assert (
        first.headers["Content-Security-Policy"]
        == client.get("/").headers["Content-Security-Policy"]
    )


def test_a_file_has_its_own_media_type(client) -> None:
    kinds = {name: client.get(f"/page/{name}").headers["Content-Type"] for name in NAMES}
    assert kinds["style.css"] == "text/css; charset=utf-8"
    assert kinds["main.js"] == "text/javascript; charset=utf-8"
    assert kinds["icon.svg"] == "image/svg+xml"


@pytest.mark.parametrize("name", ["index.html", "missing.js", "..%2Fapp.py", "%2e%2e/app.py"])
def test_nothing_else_is_served(client, refused, name) -> None:
    refused(client.get(f"/page/{name}"), 404, "not_found")


def test_only_get_and_head_are_allowed(client, refused) -> None:
    assert client.head("/").headers["ETag"] == client.get("/").headers["ETag"]
    assert client.head("/").content == b""
    refused(client.post("/"), 405, "method_not_allowed")


def test_every_file_that_the_page_names_is_there() -> None:
    found = page_files()
    named = re.findall(rb'(?:href|src)="page/([^"]+)"', found["index.html"].content)
    modules = [
        name for file in found.values() for name in re.findall(rb'from "\./([^"]+)"', file.content)
    ]
    assert len(named) == 3
    assert {name.decode() for name in (*named, *modules)} == set(NAMES)


def test_no_file_names_another_host_or_styles_in_place() -> None:
    for file in files("service").joinpath("page").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", ""), file.name
        assert not re.search(r"\b(style|on[a-z]+)=", text), file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text)
