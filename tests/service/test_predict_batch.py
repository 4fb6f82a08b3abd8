"""POST /predict/batch: a prediction or a problem for every image of a request."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from service.decoding.messages import DecodeJob
from service.decoding.pool import DecoderPool
from tests.service.conftest import PROBLEM_KEYS, app_of, encoded

STOCH = {"mode": "stoch", "samples": 4}


def post(client: TestClient, *contents: bytes, **parameters: Any) -> Any:
    files = [("files", (f"{index}.png", content)) for index, content in enumerate(contents)]
    return client.post("/predict/batch", params=parameters, files=files)


@pytest.fixture
def images(photo) -> list[bytes]:
    return [encoded(photo.rotate(90 * turn), "PNG") for turn in range(4)]


@pytest.mark.parametrize("parameters", [{}, STOCH, {**STOCH, "detail": "trajectories", "seed": 3}])
def test_every_image_has_the_same_result_as_alone_in_order(
    client, post_image, images, parameters
) -> None:
    response = post(client, *images, **parameters)
    assert response.status_code == 200
    results = response.json()["results"]
    assert len(results) == 4
    for image, result in zip(images, results, strict=True):
        alone = post_image(image, **parameters).json()
        assert list(result) == [*alone, "type", "index", "item_id"]
        assert result["request_id"] == response.headers["X-Request-ID"]
        assert (result["seed"], result["label"]) == (alone["seed"], alone["label"])
        assert result["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


def test_a_broken_image_has_a_problem_at_its_position(client, png) -> None:
    response = post(client, png, b"no image", png[:100], b"", png)
    assert response.status_code == 200
    good, text, cut, empty, last = response.json()["results"]
    items = [result.pop("item_id") for result in (good, text, cut, empty, last)]
    assert items == [f"{response.headers['X-Request-ID']}:{index}" for index in range(5)]
    assert [result.pop("index") for result in (good, text, cut, empty, last)] == [*range(5)]
    assert good == last
    for result, status, code in (
        (text, 415, "unsupported_media"),
        (cut, 422, "unusable_image"),
        (empty, 422, "invalid_upload"),
    ):
        assert set(result) == PROBLEM_KEYS
        assert (result["status"], result["code"]) == (status, code)
        assert result["request_id"] == response.headers["X-Request-ID"]


def test_an_exception_for_one_image_is_a_problem(client, png, monkeypatch, caplog) -> None:
    decode = DecoderPool.decode

    async def failing(decoder: DecoderPool, job: DecodeJob, *arguments: Any, **options: Any) -> Any:
        if job.content.endswith(b"a secret"):
            raise ZeroDivisionError("a secret")
        return await decode(decoder, job, *arguments, **options)

    monkeypatch.setattr(DecoderPool, "decode", failing)
    response = post(client, png, png + b"a secret")
    good, bad = response.json()["results"]
    assert good["label"]
    assert (bad["status"], bad["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


def test_the_settings_limit_the_files_and_a_batch_alone_may_exceed_the_rows(model, png) -> None:
    with TestClient(app_of(model, bodies={"max_files": 5}, max_waiting_rows=4)) as client:
        assert post(client, *[png] * 6).status_code == 422
        assert len(post(client, *[png] * 5).json()["results"]) == 5  # over the limit, but alone


def test_the_settings_limit_the_pixels_of_all_images_together(model, png) -> None:
    with TestClient(app_of(model, images={"max_request_pixels": 2 * 64 * 48})) as client:
        assert len(post(client, png, png).json()["results"]) == 2
        response = post(client, png, png, png)
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        assert "6,144 pixels together; these have 9,216" in response.json()["detail"]
