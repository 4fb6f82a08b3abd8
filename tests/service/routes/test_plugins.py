"""Protocols of other distributions, which are found by their entry points."""

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eulerlora.model import EulerLoRA
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Overloaded
from service.auth.keys import Keys, write_clients
from service.inference.queue import RequestQueue
from service.routes.plugins import load_plugins
from tests.eulerlora_client.runs import mel_policy
from tests.service.conftest import app_of
from tests.service.key_clients import client as client_with

PROTOCOL = '''
"""A protocol that answers in plain text, and an answer of /triage in another JSON."""

from fastapi import APIRouter, Request, Response

from eulerlora_contract.queries import PredictQuery
from service.routes.plugins import Plugin, ServiceParts, TriageFormat


def routes(parts: ServiceParts) -> APIRouter:
    router = APIRouter()

    @router.post("/plain/{model}")
    async def label(request: Request) -> Response:
        """Returns the label of an image."""
        query = PredictQuery(model=request.path_params["model"])
        prediction = await parts.pipeline.predict(request, query)
        return Response(prediction.label, media_type="text/plain")

    return router


plugin = Plugin(
    routes,
    uploads=("/plain/{model}",),
    prefix="/plain",
    problem_body=lambda document: {"wrong": document.code},
    triage_formats={
        "application/vnd.clinic+json": TriageFormat(
            lambda result, card: {"next": result.disposition, "card": card},
            "ClinicAnswer",
            {"type": "object", "properties": {"next": {"type": "string"}}},
        )
    },
)
no_plugin = routes


def taken(parts: ServiceParts) -> APIRouter:
    router = APIRouter()
    router.add_api_route("/predict", lambda: None)
    return router


shadow = Plugin(taken)
'''
PNG = {"Content-Type": "image/png"}
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution `clinic` with an entry point: (value) -> None."""

    def distribution(value: str) -> None:
        information = tmp_path / "clinic-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[eulerlora.routes]\nclinic = {value}\n")
        (tmp_path / "clinic_protocol.py").write_text(PROTOCOL)
        monkeypatch.syspath_prepend(tmp_path)

    return distribution


def test_the_protocols_of_this_distribution_are_found_in_the_same_way() -> None:
    assert {"fhir", "open-inference"} <= load_plugins().keys()


def test_a_protocol_of_another_distribution_answers_with_the_service_s_predictions(
    model: EulerLoRA, install: Install, png: bytes
) -> None:
    install("clinic_protocol:plugin")
    with TestClient(app_of(model, policy=mel_policy())) as client:
        expected = client.post("/predict", content=png, headers=PNG).json()
        answer = client.post("/plain/tiny", content=png, headers=PNG)
        assert (answer.text, answer.headers["X-Request-ID"] != "") == (expected["label"], True)
        assert "decode;dur=" in answer.headers["Server-Timing"]
        problem = client.post("/plain/other", content=png, headers=PNG)
        assert (problem.status_code, problem.json()) == (404, {"wrong": "unknown_model"})
        assert client.post("/plainer").json()["code"] == "not_found"
        accept = {**PNG, "Accept": "application/vnd.clinic+json"}
        triage = client.post("/triage", content=png, headers=accept)
        assert triage.headers["Content-Type"] == "application/vnd.clinic+json"
        assert set(triage.json()) == {"next", "card"}
        assert client.post("/triage", content=png, headers=PNG).json()["disposition"]
        assert 'route="/plain/{model}"' in client.get("/metrics").text
        document = client.get("/openapi.json").json()
    assert "/plain/{model}" in document["paths"]
    content = document["paths"]["/triage"]["post"]["responses"]["200"]["content"]
    reference = content["application/vnd.clinic+json"]["schema"]["$ref"].rpartition("/")[2]
    assert "next" in document["components"]["schemas"][reference]["properties"]


def test_requests_of_a_protocol_need_keys_and_are_refused_before_their_body(
    model: EulerLoRA, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("clinic_protocol:plugin")
    write_clients(tmp_path / "keys", [client_with("clinic", "clinic-key")])
    client = TestClient(app_of(model, keys=Keys(tmp_path / "keys")))
    refused = client.post("/plain/tiny", headers=PNG)
    assert (refused.status_code, refused.json()) == (401, {"wrong": "not_authenticated"})

    def overloaded(*_: object) -> None:
        raise Overloaded("busy", 3)

    monkeypatch.setattr(RequestQueue, "check_capacity", overloaded)
    busy = client.post("/plain/tiny", headers={**PNG, "X-API-Key": "clinic-key"})
    assert (busy.status_code, busy.json()) == (503, {"wrong": "overloaded"})


@pytest.mark.parametrize(
    ("value", "named"),
    [("no_such_module:plugin", "clinic"), ("clinic_protocol:no_plugin", "clinic"),
     ("clinic_protocol:shadow", "/predict")],
)  # fmt: skip
def test_a_plug_in_that_cannot_be_used_is_named(
    model: EulerLoRA, install: Install, value: str, named: str
) -> None:
    install(value)
    with pytest.raises(SettingsError) as refused:
        app_of(model)
    assert named in str(refused.value)
