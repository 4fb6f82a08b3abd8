"""The Open Inference Protocol has the limits, keys, problems and records of /predict."""

import base64
from typing import Any

import pytest
from starlette.testclient import TestClient

from eulerlora_contract.problems import Overloaded
from service.app import create_app
from service.inference.queue import RequestQueue
from service.lifecycle.lifecycle import Lifecycle
from service.settings import ServiceSettings
from tests.service.conftest import app_of

INFER = "/v2/models/tiny/infer"


def body_of(content: bytes) -> dict[str, Any]:
    data = [base64.b64encode(content).decode()]
    return {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": data}]}


@pytest.mark.parametrize(
    ("path", "is_checked"),
    [
        ("/predict", True),
        ("/v2/models/a/infer", True),
        ("/v2/models/a/versions/1/infer", True),
        ("/v2/models/a", False),
        ("/v2/models/a/b/infer", False),
        ("/v2/models/a/infer/", False),
        ("/models", False),
    ],
)
def test_requests_with_images_are_checked_for_every_model(
    model, monkeypatch, path, is_checked
) -> None:
    def overloaded(*_: object) -> None:
        raise Overloaded("busy")

    monkeypatch.setattr(RequestQueue, "check_capacity", overloaded)
    response = TestClient(app_of(model)).post(path)
    assert (response.status_code == 503) == is_checked


def test_all_but_the_probes_needs_a_key(keyed, png) -> None:
    for path in ("/v2", "/v2/models/tiny", "/v2/models/tiny/ready"):
        response = keyed.get(path)
        assert (response.status_code, list(response.json())) == (401, ["error"])
    refused = keyed.post(INFER, json=body_of(png))
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert keyed.get("/v2/health/live").json() == {"live": True}
    accepted = keyed.get("/v2/models/tiny", headers={"X-API-Key": "clinic-key"})
    assert accepted.status_code == 200


def test_overload_has_the_chosen_status_on_every_route(model, png) -> None:
    status = 429  # not the default
    app = app_of(model, overload_status=status)

    def overloaded(*_: object) -> None:
        raise Overloaded("busy", 3)

    with pytest.MonkeyPatch.context() as patch, TestClient(app) as client:
        patch.setattr(RequestQueue, "check_capacity", overloaded)
        refused = client.post("/predict", content=png, headers={"Content-Type": "image/png"})
        infer = client.post(INFER, json=body_of(png))
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert refused.json()["code"] == "overloaded"
    assert (infer.status_code, infer.json()) == (status, {"error": "overloaded: busy"})
    assert refused.headers["Retry-After"] == infer.headers["Retry-After"] == "3"


def test_unknown_paths_and_methods_have_errors_of_the_protocol(client) -> None:
    for method, path, status in (
        ("GET", "/v2/other", 404),
        ("GET", INFER, 405),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/", 404),
    ):
        response = client.request(method, path)
        assert (response.status_code, list(response.json())) == (status, ["error"])
    assert client.get("/v2x").headers["Content-Type"] == "application/problem+json"


def test_a_request_is_counted_under_its_template(client, png) -> None:
    def counted(status: int) -> float:
        wanted = f'route="/v2/models/{{name}}/infer",status="{status}"'
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if wanted in line and "_total" in line)

    before = counted(200)
    answer = client.post(INFER, json=body_of(png), headers={"X-Request-ID": "mine"})
    assert answer.headers["X-Request-ID"] == "mine"
    assert "decode;dur=" in answer.headers["Server-Timing"]
    assert counted(200) == before + 1


def test_liveness_and_documentation_are_answered_while_the_models_load() -> None:
    settings = ServiceSettings()
    client = TestClient(create_app(Lifecycle(settings), settings))
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/openapi.json").json()["paths"]
    assert client.get("/docs").status_code == 200
    for path in ("/v2/health/ready", "/v2/models/tiny/ready"):
        response = client.get(path)
        assert response.status_code == 503
        assert response.json() == {"error": "not_ready: the models are being loaded"}
