"""The routes that describe the models, probes, and metrics."""

import asyncio
from typing import Any

import httpx
import pytest
import torch
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_contract.checkpoints import Threshold
from service.app import create_app
from service.extensions import Extension
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.settings import ServiceSettings
from service.telemetry.metrics import Metrics
from tests.service.conftest import app_of, encoded
from tests.service.harness import WorkingDecoder
from tests.service.observed import GAUGES, count_everything, observed_app
from tests.service.settings import settings_of

TEXT = "text/plain; version=0.0.4; charset=utf-8"
PNG = {"Content-Type": "image/png"}
OPENMETRICS = "application/openmetrics-text"


def test_the_list_has_name_revision_classes_and_default(client, model) -> None:
    response = client.get("/models")
    assert response.status_code == 200
    assert response.json() == {
        "models": [
            {
                "name": "tiny",
                "revision": model.revision,
                "source": None,
                "classes": ["bkl", "mel", "nv"],
                "precision": "float32",
                "runtime": "torch",
                "licence": None,
                "default": True,
            }
        ]
    }


def test_a_model_has_classes_limits_thresholds_and_provenance(client, model) -> None:
    response = client.get("/models/tiny")
    assert response.status_code == 200
    body = response.json()
    assert set(body) == {
        "name", "revision", "source", "classes", "adapters", "input_size", "precision",
        "precision_reason", "runtime", "runtime_reason", "image_limits", "max_body_bytes",
        "max_samples", "views", "thresholds", "prediction_sets", "shift", "licence", "provenance",
    }  # fmt: skip
    assert (body["name"], body["revision"]) == ("tiny", model.revision)
    assert body["classes"] == [
        {"name": name, "description": name.upper()} for name in ("bkl", "mel", "nv")
    ]
    assert (body["adapters"], body["input_size"], body["max_samples"]) == (2, 32, 64)
    kinds = ["image/jpeg", "image/png", "image/webp"]
    assert body["image_limits"] == {**settings_of("images").model_dump(), "media_types": kinds}
    assert {
        (entry["options"]["mode"], entry["options"]["samples"]) for entry in body["thresholds"]
    } == {
        ("det", 1),
        ("stoch", 4),
    }
    assert body["thresholds"] == [entry.model_dump() for entry in model.config.thresholds]
    assert body["provenance"] == model.config.provenance


def test_a_shift_appears_in_the_details_the_metrics_and_the_answers(model, png) -> None:
    flagged = model.config.thresholds[0].model_copy(update={"msp": 1.0, "kept": 0.95})
    with TestClient(app_of(with_thresholds(model, flagged))) as client:
        answers = [client.post("/predict", content=png, headers=PNG).json() for _ in range(80)]
        shift = client.get("/models/tiny").json()["shift"]
        metrics = client.get("/metrics").text
    codes = [[warning["code"] for warning in answer["warnings"]] for answer in answers]
    assert "distribution_shift" not in codes[0]
    assert "distribution_shift" in codes[-1]
    assert (shift["pictures"], shift["alarm"]) == (80, True)
    (signal,) = (signal for signal in shift["signals"] if signal["name"] == "msp")
    assert (signal["pictures"], signal["rate"], signal["alarm"]) == (80, 1.0, True)
    assert signal["evidence"] >= shift["limit"]
    assert 'eulerlora_shift_alarm{model="tiny",signal="msp"} 1.0' in metrics


def with_thresholds(model: EulerLoRA, *thresholds: Threshold) -> EulerLoRA:
    """A model with the network of `model` and other thresholds."""
    config = model.config.model_copy(update={"thresholds": thresholds})
    return EulerLoRA(Checkpoint(model.network, config, "sha256:shift"), torch.device("cpu"))


def test_two_models_are_served_by_name(make_network, make_config, photo) -> None:
    def served(name: str, seed: int) -> ServedModel:
        network = make_network(seed=seed)
        checkpoint = Checkpoint(network, make_config(network, name=name), f"sha256:{seed}")
        return ServedModel(EulerLoRA(checkpoint, torch.device("cpu")))

    data = {"content": encoded(photo, "PNG"), "headers": {"Content-Type": "image/png"}}
    with TestClient(app_of(served("first", 1), served("second", 2))) as client:
        listed = client.get("/models").json()["models"]
        default = client.post("/predict", **data).json()
        first = client.post("/predict?model=first", **data).json()
        second = client.post("/predict?model=second", **data).json()
    assert [(entry["name"], entry["default"]) for entry in listed] == [
        ("first", True),
        ("second", False),
    ]
    assert (default["model"], second["model"]) == ("first", "second")
    assert default["probabilities"] == first["probabilities"] != second["probabilities"]
    assert (first["revision"], second["revision"]) == ("sha256:1", "sha256:2")


def test_the_service_is_ready_while_models_decoder_and_extensions_work() -> None:
    decoder: Any = Part()
    extension = Part()
    lifecycle = Lifecycle(ServiceSettings(), extensions={"some": extension}, decoder=decoder)
    client = TestClient(create_app(lifecycle, ServiceSettings()))

    def statuses() -> tuple[int, int]:
        response = client.get("/readyz")
        assert response.is_success or response.json()["code"] == "not_ready"
        return client.get("/livez").status_code, response.status_code

    assert statuses() == (200, 503)
    lifecycle.serve(ServedModels())
    assert statuses() == (200, 200)
    for part in (decoder, extension):
        part.works = False
        assert statuses() == (200, 503)
        part.works = True
        assert statuses() == (200, 200)
    lifecycle.stop()
    assert statuses() == (200, 503)


class Part(Extension):
    """An extension, or a decoder, that works or does not."""

    works = True
    sandbox = WorkingDecoder.sandbox

    @property
    def is_working(self) -> bool:
        return self.works

    def fault(self) -> str | None:
        return None if self.works else "it does not work"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        (f"{OPENMETRICS}; version=1.0.0", f"{OPENMETRICS}; version=1.0.0; charset=utf-8"),
        (f"{OPENMETRICS}; version=zero", TEXT),
    ],
)
def test_metrics_have_the_accepted_format(accept, content_type) -> None:
    metrics = Metrics(lambda: GAUGES)
    count_everything(metrics)
    client = TestClient(observed_app(metrics))
    response = client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith(content_type)
    parse = openmetrics_parser if content_type.startswith(OPENMETRICS) else parser
    names = {family.name for family in parse.text_string_to_metric_families(response.text)}
    assert {"eulerlora_ready", "eulerlora_entropy_nats", "process_open_fds"} <= names


@pytest.mark.parametrize("addresses", [1, 3])
def test_scrapes_of_an_address_are_answered_one_after_another(
    monkeypatch: pytest.MonkeyPatch, addresses: int
) -> None:
    waiting = most = 0
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal waiting, most
        waiting += seconds == 0.02
        most = max(most, waiting)
        for _ in range(5):
            await sleep(0)
        waiting -= seconds == 0.02

    monkeypatch.setattr("service.routes.system.asyncio.sleep", counted)
    metrics = Metrics(lambda: GAUGES)
    app = observed_app(metrics)

    async def scrape(number: int) -> int:
        transport = httpx.ASGITransport(app, client=(f"10.0.0.{number % addresses}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as scraper:
            return (await scraper.get("/metrics")).status_code

    async def scrape_all() -> list[int]:
        return await asyncio.gather(*(scrape(number) for number in range(6)))

    assert asyncio.run(scrape_all()) == [200] * 6
    assert (waiting, most) == (0, addresses)


def test_a_scrape_of_a_client_that_is_gone_keeps_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.routes.system._SCRAPE_INTERVAL_S", 1e6)
    app = observed_app(Metrics(lambda: GAUGES))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/metrics",
        "raw_path": b"/metrics",
        "query_string": b"",
        "headers": [],
        "client": ("10.0.0.1", 1),
    }
    statuses: list[int] = []
    messages = [{"type": "http.disconnect"}, {"type": "http.request"}]

    async def receive() -> dict[str, str]:
        return messages.pop()

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    asyncio.run(app(scope, receive, send))
    assert statuses[0] == 499


CARD_TEXT = "# tiny\n\nTrained on nothing: Größe 0.\n"


def test_the_card_of_a_model_is_markdown(model) -> None:
    client = TestClient(app_of(ServedModel(model, CARD_TEXT)))
    response = client.get("/models/tiny/card")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert response.text == CARD_TEXT


@pytest.mark.parametrize("path", ["/models/{name}/card", "/metrics"])
def test_a_client_that_accepts_all_documented_formats_of_a_text_gets_plain_text(
    client, path: str
) -> None:
    document = client.get("/openapi.json").json()["paths"][path]["get"]["responses"]["200"]
    accept = {"Accept": ", ".join([*document["content"], "application/problem+json"])}
    response = client.get(path.format(name="tiny"), headers=accept)  # as a generated client in Java
    assert response.headers["Content-Type"].startswith("text/plain;")


def test_a_model_without_a_card_has_an_empty_one_and_an_unknown_model_is_a_404_without_echo(
    client, refused
) -> None:
    assert client.get("/models/tiny/card").text == ""
    for path in ("/models/xyzzy", "/models/TINY", "/models/%C3%A9", "/models/xyzzy/card"):
        response = client.get(path)
        refused(response, 404, "unknown_model")
        assert "xyzzy" not in response.text
