"""POST /predict/batch: many images in one request, each with an answer or a problem of its own."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from service.decoding.pool import Decoder

STOCH = {"mode": "stoch", "samples": 4}
PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}


def post(client: TestClient, *contents: bytes, **parameters: Any) -> Any:
    files = [("files", (f"{index}.png", each)) for index, each in enumerate(contents)]
    return client.post("/predict/batch", params=parameters, files=files)


@pytest.fixture
def pictures(photo, encode) -> list[bytes]:
    return [encode(photo.rotate(90 * turn), "PNG") for turn in range(4)]


@pytest.mark.parametrize("parameters", [{}, STOCH, {**STOCH, "detail": "trajectories", "seed": 3}])
def test_each_image_gets_the_answer_that_it_gets_alone_in_order(
    client, post_image, pictures, parameters
) -> None:
    response = post(client, *pictures, **parameters)
    assert response.status_code == 200
    results = response.json()["results"]
    assert len(results) == 4
    for picture, found in zip(pictures, results, strict=True):
        alone = post_image(picture, **parameters).json()
        assert list(found) == list(alone)
        assert found["request_id"] == response.headers["X-Request-ID"]
        assert (found["seed"], found["label"]) == (alone["seed"], alone["label"])
        assert found["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


def test_a_broken_image_gets_a_problem_in_its_place(client, png) -> None:
    response = post(client, png, b"no image", png[:100], b"", png)
    assert response.status_code == 200
    good, text, cut, empty, last = response.json()["results"]
    assert good == last
    for found, status, code in (
        (text, 415, "unsupported_media"),
        (cut, 422, "unusable_image"),
        (empty, 422, "invalid_upload"),
    ):
        assert set(found) == PROBLEM_KEYS
        assert (found["status"], found["code"]) == (status, code)
        assert found["request_id"] == response.headers["X-Request-ID"]


def test_only_broken_images_are_still_a_list_of_problems(client) -> None:
    response = post(client, b"one", b"two")
    assert response.status_code == 200
    assert [each["status"] for each in response.json()["results"]] == [415, 415]


def test_a_defect_at_one_image_is_told_in_its_place(client, png, monkeypatch, caplog) -> None:
    decode = Decoder.decode

    async def failing(decoder: Decoder, content: bytes, *arguments: Any) -> Any:
        if content == b"a secret":
            raise ZeroDivisionError("a secret")
        return await decode(decoder, content, *arguments)

    monkeypatch.setattr(Decoder, "decode", failing)
    response = post(client, png, b"a secret")
    good, bad = response.json()["results"]
    assert good["label"]
    assert (bad["status"], bad["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


def test_server_timing_tells_the_longest_of_each_part(client, png) -> None:
    parts = post(client, png, png).headers["Server-Timing"].split(", ")
    assert [part.split(";dur=")[0] for part in parts] == ["decode", "queue", "model"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [("sample=4", 422, "invalid_parameter"), ("samples=4", 422, "invalid_parameter"),
     ("seed=1&seed=1", 422, "invalid_parameter"), ("model=xyzzy", 404, "unknown_model")],
)  # fmt: skip
def test_parameters_are_checked_as_for_one_image(client, refused, png, query, status, code) -> None:
    response = client.post(f"/predict/batch?{query}", files=[("files", ("a.png", png))])
    refused(response, status, code)


def test_what_is_wrong_with_the_body_as_a_whole_is_the_requests_problem(
    client, refused, png
) -> None:
    refused(client.post("/predict/batch"), 422, "invalid_upload")
    refused(client.post("/predict/batch", content=png), 415, "unsupported_media")
    refused(client.post("/predict/batch", files={"file": ("a", png)}), 422, "invalid_upload")
    refused(post(client, *[png] * 33), 422, "invalid_upload")


def test_the_number_of_files_is_the_operators_and_all_rows_are_taken_together(
    model, make_app, png
) -> None:
    with TestClient(make_app(model, bodies={"max_files": 5}, max_waiting_rows=4)) as client:
        assert post(client, *[png] * 6).status_code == 422
        assert len(post(client, *[png] * 5).json()["results"]) == 5  # over the rows, but alone


def test_the_openapi_document_tells_of_many_files(client) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/predict/batch"]["post"]
    (form,) = operation["requestBody"]["content"].values()
    assert form["schema"]["properties"]["files"]["type"] == "array"
    assert {each["name"] for each in operation["parameters"]} == {
        "mode", "samples", "seed", "model", "detail",
    }  # fmt: skip
