"""POST /triage/report: the same report as the command line's, of answers that are sent back."""

import asyncio
import csv
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient

from eulerlora_client.report import submitted
from eulerlora_client.report.exports import write_csv
from eulerlora_client.report.html import report_html
from eulerlora_client.report.submitted import ReportJob, submitted_report
from eulerlora_contract.answers import Disposition, Reason
from eulerlora_contract.policy.policy import default_policy
from eulerlora_contract.problems import MalformedBody, Overloaded
from service.routes import triage as report
from service.routes.triage import ReportWriter
from service.settings import ServiceSettings
from tests.eulerlora_client.runs import decided
from tests.eulerlora_client.triage_rows import failed
from tests.service.conftest import app_of
from tests.service.harness import FakeRequest

HOSTILE = '"><img src=x onerror=alert(1)>.jpg'
ROWS = [
    decided("routine.png", Disposition.ROUTINE, 0.01),
    failed(Path("notes.txt"), "unsupported_media", "The media type is not supported: no image"),
    decided(HOSTILE, Disposition.URGENT, 0.6, Reason.TARGET_CLASSES),
]
JSON = {"Content-Type": "application/json"}


def picture(file_format: str = "JPEG", side: int = 40) -> str:
    buffer = BytesIO()
    Image.new("RGB", (side, 30), "brown").save(buffer, file_format)
    return b64encode(buffer.getvalue()).decode()


def images(**changes: Any) -> list[dict[str, Any]]:
    """ROWS as the page sends them; the changes are those of the first image."""
    problem = {"code": "unsupported_media", "status": 415, "type": "urn:x", "request_id": "r1"}
    texts = {"title": "The media type is not supported", "detail": "no image"}
    first, last = (
        {"file": str(row.path), "result": row.result.model_dump(mode="json")}
        for row in ROWS
        if row.result
    )
    return [first | changes, {"file": "notes.txt", "problem": problem | texts}, last]


@pytest.fixture(scope="module")
def client(model) -> Iterator[TestClient]:
    with TestClient(app_of(model)) as client:
        yield client


def post(client: TestClient, sent: Any, query: str = "") -> Any:
    return client.post(f"/triage/report{query}", content=json.dumps(sent), headers=JSON)


def test_the_page_is_that_of_the_command_line(client) -> None:
    response = post(client, {"images": images()})
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Disposition"] == 'attachment; filename="triage.html"'
    assert response.headers["Cache-Control"] == "no-store"
    expected = "".join(report_html(ROWS, default_policy(), datetime.now(UTC), lambda _: None))
    lines = [text.partition("<main>")[2].splitlines() for text in (response.text, expected)]
    assert lines[0] == lines[1]
    assert "<img src=x" not in response.text


def test_the_csv_is_that_of_the_command_line_in_the_order_sent(client, tmp_path: Path) -> None:
    response = post(client, {"images": images()}, "?format=csv")
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    write_csv(tmp_path / "rows.csv", ROWS)
    assert response.content == (tmp_path / "rows.csv").read_bytes()
    names = [row["file"] for row in csv.DictReader(StringIO(response.content.decode("utf-8-sig")))]
    assert names == [str(row.path) for row in ROWS]


def test_thumbnails_are_embedded_unless_they_are_no_small_pictures(client) -> None:
    for file_format, media_type in (("JPEG", "image/jpeg"), ("PNG", "image/png")):
        thumbnail = picture(file_format)
        text = post(client, {"images": images(thumbnail=thumbnail)}).text
        assert f'src="data:{media_type};base64,{thumbnail}" width="40" height="30"' in text
    for thumbnail in (picture("GIF"), picture(side=2000), "no base64!", b64encode(b"x").decode()):
        text = post(client, {"images": images(thumbnail=thumbnail)}).text
        assert "data:image" not in text
        assert text.count("no image") >= 3


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        ([], "expected a table"),
        ({}, "images: "),
        ({"images": [], "secret": 1}, "expected"),
        ({"images": images(secret=1)}, "images.0: "),
        ({"images": images(problem={"code": "a"})}, "images.0: expected either result or problem"),
        ({"images": images(result=None)}, "images.0: expected either result or problem"),
        ({"images": images(result={"disposition": "secret"})}, "images.0.result: "),
        ({"images": images(file="")}, "images.0.file: "),
        ({"images": images(thumbnail="A" * 32_001)}, "images.0.thumbnail: "),
        ({"images": [{"file": "a", "problem": {"code": "a"}}] * 1001}, "images: "),
    ],
)
def test_another_body_is_refused_with_its_place_and_without_its_content(
    client, sent: Any, detail: str
) -> None:
    response = post(client, sent)
    body = response.json()
    assert (response.status_code, body["code"]) == (400, "malformed_body")
    assert detail in body["detail"]
    assert "secret" not in body["detail"]


def test_other_requests_are_refused(client) -> None:
    for response, status, code in (
        (client.post("/triage/report", content="{", headers=JSON), 400, "malformed_body"),
        (client.post("/triage/report", content="{}"), 415, "unsupported_media"),
        (client.post("/triage/report", files={"file": b"{}"}), 415, "unsupported_media"),
        (post(client, {"images": []}, "?format=pdf"), 422, "invalid_parameter"),
        (post(client, {"images": []}, "?a=b"), 422, "invalid_parameter"),
        (client.get("/triage/report"), 405, "method_not_allowed"),
    ):
        assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_report_that_is_too_long_is_refused(monkeypatch) -> None:
    content = json.dumps({"images": images()}).encode()
    job = ReportJob(format="html", policy=default_policy(), cpu_s=600)
    length = len(submitted_report(job, content, datetime.now(UTC)))
    monkeypatch.setattr(submitted, "MAX_CHARACTERS", length - 1)
    with pytest.raises(MalformedBody, match="too large"):
        submitted_report(job, content, datetime.now(UTC))


def test_a_report_beyond_its_deadline_ends_alone(model) -> None:
    with TestClient(app_of(model, deadline_s=0.05)) as client:
        response = post(client, {"images": images()})
        assert (response.status_code, response.json()["code"]) == (504, "deadline_passed")
        assert client.get("/livez").status_code == 200


def test_a_report_beyond_its_cpu_time_is_too_large(model, monkeypatch) -> None:
    monkeypatch.setattr(report.math, "ceil", lambda _: 0)
    with TestClient(app_of(model)) as client:
        response = post(client, {"images": images()})
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


def test_a_client_has_one_report_at_a_time() -> None:
    writer = ReportWriter(default_policy(), ServiceSettings(deadline_s=600))

    async def outcomes() -> list[object]:
        clients = ("clinic", "clinic", "other")
        reports = (writer.report(request_of(name), "csv") for name in clients)
        first = await asyncio.gather(*reports, return_exceptions=True)
        return [*first, await writer.report(request_of("clinic"), "csv")]

    first, second, other, later = asyncio.run(outcomes())
    assert isinstance(second, Overloaded)
    assert second.retry_after_s
    assert first == other == later
    assert isinstance(first, bytes)


def request_of(client: str) -> Request:
    """A request of a client with a key that stays connected, with an empty report."""
    request = FakeRequest(b'{"images": []}').request
    request.scope["headers"] = [(b"content-type", b"application/json")]
    request.state.key_name = client
    return request
