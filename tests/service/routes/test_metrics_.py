"""`GET /metrics`: the formats that scrapers can read."""

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from starlette.testclient import TestClient

from tests.service.observed import State, count_everything, observed_app

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        (f"{OPENMETRICS}; version=1.0.0", f"{OPENMETRICS}; version=1.0.0; charset=utf-8"),
        (f"{OPENMETRICS}; version=zero", TEXT),
    ],
)
def test_the_exposition_is_in_the_format_that_is_accepted(accept, content_type) -> None:
    metrics = State().metrics()
    count_everything(metrics)
    client = TestClient(observed_app(metrics))
    response = client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith(content_type)
    parse = openmetrics_parser if content_type.startswith(OPENMETRICS) else parser
    names = {each.name for each in parse.text_string_to_metric_families(response.text)}
    assert {"eulerlora_ready", "eulerlora_entropy_nats", "process_open_fds"} <= names
