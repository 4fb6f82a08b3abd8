"""The Open Inference Protocol: the public Triton client gets the answers of /predict."""

import asyncio
import base64
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from starlette.testclient import TestClient
from tritonclient.utils import InferenceServerException

from service.prediction import Pipeline
from tests.service.conftest import app_of
from tests.service.real_server import run_server

INFER = "/v2/models/tiny/infer"
STOCH = {"mode": "stoch", "samples": 4, "seed": 7}
NUMBERS = ("entropy", "expected_entropy", "mutual_information", "msp")


@pytest.fixture(scope="module")
def server(model) -> Iterator[triton.InferenceServerClient]:
    """The public client, connected to a real server."""
    with (
        run_server(app_of(model)) as port,
        triton.InferenceServerClient(
            f"127.0.0.1:{port}", connection_timeout=120, network_timeout=120
        ) as client,
    ):
        yield client


def image_input(content: bytes, shape: tuple[int, ...] = (1,)) -> triton.InferInput:
    tensor = triton.InferInput("image", shape, "BYTES")
    return tensor.set_data_from_numpy(np.array([content], dtype=object).reshape(shape))


def json_input(content: bytes, **changes: Any) -> dict[str, Any]:
    data = [base64.b64encode(content).decode()]
    return {"name": "image", "shape": [1], "datatype": "BYTES", "data": data} | changes


def post(client: TestClient, content: bytes, **members: Any) -> Any:
    return client.post(INFER, json={"inputs": [json_input(content)]} | members)


def texts(result: triton.InferResult, name: str) -> list[str]:
    elements = result.as_numpy(name).tolist()  # bytes in binary tensors, str in JSON
    return [text if isinstance(text, str) else text.decode() for text in elements]


def check_against_predict(result: triton.InferResult, body: dict[str, Any]) -> None:
    """Checks that the tensors have exactly the numbers of a response of /predict."""
    assert texts(result, "label") == [body["label"]]
    assert texts(result, "classes") == list(body["probabilities"])
    assert result.as_numpy("probabilities").tolist() == [list(body["probabilities"].values())]
    for name in NUMBERS:
        assert result.as_numpy(name).tolist() == [body[name]]
    for name in ("ood", "unfamiliar"):
        flag = body.get(name)
        assert result.as_numpy(name).tolist() == ([] if flag is None else [flag])


def test_the_public_client_finds_the_server_and_the_model(server, model) -> None:
    assert server.is_server_live()
    assert server.is_server_ready()
    assert server.is_model_ready("tiny")
    assert server.is_model_ready("tiny", model.revision)
    assert not server.is_model_ready("other")
    assert not server.is_model_ready("tiny", "1")
    assert "statistics" in server.get_server_metadata()["extensions"]
    metadata = server.get_model_metadata("tiny")
    assert (metadata["name"], metadata["versions"]) == ("tiny", [model.revision])
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [1]}]
    shapes = {output["name"]: output["shape"] for output in metadata["outputs"]}
    assert (shapes["probabilities"], shapes["ood"]) == ([1, len(model.classes)], [-1])


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("parameters", [{}, STOCH, {"mode": "stoch", "samples": "auto"}])
def test_binary_tensors_have_the_numbers_of_predict(
    server, post_image, png, parameters, shape
) -> None:
    result = server.infer("tiny", [image_input(png, shape)], parameters=parameters)
    body = post_image(png, **parameters).json()
    check_against_predict(result, body)
    answered = result.get_response()["parameters"]
    for name in ("mode", "samples", "trajectories", "seed"):
        assert answered[name] == body[name]


def test_json_tensors_have_the_numbers_of_predict(server, client, post_image, png) -> None:
    response = post(client, png, parameters=STOCH)
    assert response.headers["Content-Type"] == "application/json"
    result = triton.InferenceServerClient.parse_response_body(response.content)
    check_against_predict(result, post_image(png, **STOCH).json())


def test_the_requested_outputs_are_returned_in_order_and_form(server, png) -> None:
    outputs = [
        triton.InferRequestedOutput("msp", binary_data=False),
        triton.InferRequestedOutput("label", binary_data=True),
    ]
    answer = server.infer("tiny", [image_input(png)], outputs=outputs, request_id="my-id")
    response = answer.get_response()
    assert [output["name"] for output in response["outputs"]] == ["msp", "label"]
    assert "data" in response["outputs"][0]
    assert response["outputs"][1]["parameters"]["binary_data_size"] > 4
    assert response["id"] == "my-id"
    assert answer.as_numpy("msp").dtype == np.float64


def test_a_version_is_the_revision_that_is_served(server, model, png) -> None:
    result = server.infer("tiny", [image_input(png)], model_version=model.revision)
    assert result.get_response()["model_version"] == model.revision
    with pytest.raises(InferenceServerException, match="unknown_model") as caught:
        server.infer("tiny", [image_input(png)], model_version="2")
    assert caught.value.status() == "404"


def test_the_public_client_may_ask_for_a_sequence_a_priority_and_a_timeout(server, png) -> None:
    scheduling = {"priority": 1, "timeout": 600_000_000}
    for sequence_id in (7, "seven"):
        sequence = {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": True}
        result = server.infer("tiny", [image_input(png)], **sequence, **scheduling)
        assert texts(result, "label")


def test_a_request_ends_at_its_timeout(server, png, monkeypatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Pipeline, "predict", never)
    with pytest.raises(InferenceServerException, match="deadline_passed") as caught:
        server.infer("tiny", [image_input(png)], timeout=1)
    assert caught.value.status() == "504"


def test_the_statistics_count_requests_of_each_model_and_their_stages(server, model, png) -> None:
    def statistics(name: str = "", version: str = "") -> dict[str, Any]:
        (one,) = server.get_inference_statistics(name, version)["model_stats"]
        assert (one["name"], one["version"]) == ("tiny", model.revision)
        return dict(one)

    before = statistics()
    server.infer("tiny", [image_input(png)])
    with pytest.raises(InferenceServerException):
        server.infer("tiny", [image_input(b"no image")])
    after = statistics("tiny")
    assert after == statistics("tiny", model.revision)
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["last_inference"] >= before["last_inference"]
    old, new = before["inference_stats"], after["inference_stats"]
    for name in ("success", "fail", "queue", "compute_input", "compute_infer"):
        assert new[name]["count"] == old[name]["count"] + 1
        assert new[name]["ns"] > old[name]["ns"]
    with pytest.raises(InferenceServerException, match="unknown_model"):
        server.get_inference_statistics("other")


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ({"samples": 4}, "422", "invalid_parameter: samples: expected only with mode=stoch"),
        ({"mode": "stoch", "samples": 65}, "422", "samples"),
        ({"mode": "stoch", "samples": True}, "422", "samples"),
        ({"mode": "stoch", "samples": 4.0}, "422", "samples"),
        ({"seed": "7"}, "422", "seed"),
        ({"seed": -1}, "422", "seed: expected a number of at least 0"),
        ({"views": True}, "422", "views"),
        ({"views": 1.0}, "422", "views"),
        ({"views": "4"}, "422", "views: expected a whole number"),
        ({"sample": 4}, "422", "sample: unknown parameter"),
        ({"model": "tiny"}, "422", "model: expected in the path"),
        ({"detail": "trajectories"}, "422", "detail: unknown parameter"),
        ({"timeout": 1.5}, "422", "timeout"),
        ({"timeout": 10**310}, "422", "timeout"),
    ],
)
def test_invalid_parameters_are_errors_of_the_protocol(
    server, png, parameters, status, message
) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        server.infer("tiny", [image_input(png)], parameters=parameters)
    assert caught.value.status() == status


def test_a_prediction_set_is_an_output_only_with_coverage(client, png) -> None:
    def names(**members: Any) -> list[str]:
        return [output["name"] for output in post(client, png, **members).json()["outputs"]]

    declared = [output["name"] for output in client.get("/v2/models/tiny").json()["outputs"]]
    assert names() == [name for name in declared if name != "prediction_set"]
    assert names(parameters={"coverage": 0.9}) == declared
    assert "prediction_set" in declared
    refused = post(client, png, outputs=[{"name": "prediction_set"}])
    assert refused.status_code == 422
    assert "coverage" in refused.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "expected valid JSON"),
        (b"[]", 400, "malformed_body"),
        (b'{"inputs": [' + b"1," * 2000 + b"1]}", 400, "at most 1,000 items"),
        (b'{"inputs": []}', 400, "inputs: expected 1 or more items"),
        (b'{"inputs": [{"name": "image"}]}', 400, "expected a value, got none"),
        (b"[" * 900, 400, "expected valid JSON"),
        (b"\xff\xfe", 400, "expected valid JSON"),
    ],
)
def test_a_malformed_body_is_an_error_of_the_protocol(client, body, status, message) -> None:
    response = client.post(INFER, content=body)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert message in response.json()["error"]
    assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "picture"}, "inputs.0.name: expected 'image'"),
        ({"shape": [2]}, "inputs.0.shape"),
        ({"datatype": "UINT8"}, "inputs.0.datatype"),
        ({"data": ["%%%"]}, "image: expected base64"),
        ({"data": ["", ""]}, "image: expected one element"),
        ({"data": [["aGk="]]}, "image: expected one element"),
        ({"data": []}, "invalid_upload"),
        ({"data": None}, "image: expected data or binary_data_size"),
        ({"parameters": {"binary_data_size": 3}}, "image: expected data or binary_data_size"),
        ({"parameters": {"shared_memory_region": "a"}}, "inputs.0.parameters"),
    ],
)
def test_an_invalid_input_is_named(client, png, changes, message) -> None:
    response = client.post(INFER, json={"inputs": [json_input(png, **changes)]})
    assert response.status_code in (400, 422)
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "size", "prefix", "tail"),
    [
        ("x", 0, 0, b""), ("-1", 0, 0, b""), ("9" * 30, 0, 0, b""), ("1000000", 0, 0, b""),
        (None, 1, 0, b""), (None, 0, 1, b""), (None, 0, -1, b""), (None, 0, 0, b"more"),
        (None, 2**40, 0, b""),
    ],
)  # fmt: skip
def test_binary_data_must_have_the_announced_sizes(client, png, header, size, prefix, tail) -> None:
    tensor = struct.pack("<I", len(png) + prefix) + png
    sent = json_input(png, parameters={"binary_data_size": len(tensor) + size})
    sent.pop("data")
    text = client.build_request("POST", INFER, json={"inputs": [sent]}).content
    response = client.post(
        INFER,
        content=text + tensor + tail,
        headers={"Inference-Header-Content-Length": header or str(len(text))},
    )
    assert (response.status_code, response.json()["error"].partition(":")[0]) == (
        400,
        "malformed_body",
    )


@pytest.mark.parametrize("headers", [{"Content-Type": "image/png"}, {"Content-Encoding": "gzip"}])
def test_other_media_types_and_compression_are_refused(client, png, headers) -> None:
    response = client.post(INFER, json={"inputs": [json_input(png)]}, headers=headers)
    assert response.status_code == 415


def test_parameters_in_the_query_are_refused(client, png) -> None:
    response = client.post(f"{INFER}?mode=stoch", json={"inputs": [json_input(png)]})
    assert response.status_code == 422


@pytest.mark.parametrize("outputs", [[{"name": "logits"}], [{"name": "msp"}, {"name": "msp"}]])
def test_unknown_and_repeated_outputs_are_refused(client, png, outputs) -> None:
    response = post(client, png, outputs=outputs)
    assert response.status_code == 422
    assert "expected distinct names among label" in response.json()["error"]
