"""GET /models/{name}/card."""

from starlette.testclient import TestClient

from eulerlora.checkpoint.files import CARD
from service.app import create_service
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.loading import MAX_CARD_BYTES, read_card
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

TEXT = "# tiny\n\nTrained on nothing: Größe 0.\n"


def test_the_card_of_a_model_is_markdown(model) -> None:
    models = ServedModels([ServedModel.of(model, TEXT)])
    lifecycle = Lifecycle()
    lifecycle.become_ready()
    service = create_service(models, ServiceSettings(), lifecycle)
    response = TestClient(service.application).get("/models/tiny/card")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert response.text == TEXT


def test_a_model_without_a_card_has_an_empty_one_and_an_unknown_model_is_a_problem(
    client, refused
) -> None:
    assert client.get("/models/tiny/card").text == ""
    refused(client.get("/models/other/card"), 404, "unknown_model")


def test_a_card_is_read_from_the_checkpoint_up_to_a_limit(tmp_path) -> None:
    assert read_card(tmp_path) == ""
    (tmp_path / CARD).write_bytes(TEXT.encode() + b"\xff")
    assert read_card(tmp_path) == TEXT + "\N{REPLACEMENT CHARACTER}"
    (tmp_path / CARD).write_bytes(bytes(MAX_CARD_BYTES + 1))
    assert len(read_card(tmp_path)) == MAX_CARD_BYTES
