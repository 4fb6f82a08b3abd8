"""`POST /embed`."""

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from eulerlora.images.files import read_image
from eulerlora.images.preprocess import network_input

PNG = {"Content-Type": "image/png"}


def test_the_features_are_those_of_the_library_in_mode_det(client, model, png) -> None:
    response = client.post("/embed?model=tiny", content=png, headers=PNG)
    assert response.status_code == 200, response.text
    body = response.json()
    assert set(body) == {
        "request_id", "model", "revision", "embedding", "texture", "contrast", "warnings"
    }  # fmt: skip
    assert (body["model"], body["revision"]) == ("tiny", model.revision)
    assert body["request_id"] == response.headers["X-Request-ID"]
    pixels = network_input(read_image(png, "a").pixels, model.config.preprocessing)
    (trajectories,) = model.run([(pixels, 0)], [model.options()])
    expected = trajectories.features.mean(dim=(1, 2))[0]
    actual = torch.tensor([*body["embedding"], *body["texture"], *body["contrast"]])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert len(body["embedding"]) == model.config.backbone.settings.width


@pytest.mark.parametrize(
    ("query", "content", "status", "code"),
    [
        ("?mode=det", None, 422, "invalid_parameter"),
        ("?model=other", None, 404, "unknown_model"),
        ("", b"text", 415, "unsupported_media"),
        ("", b"", 422, "invalid_upload"),
    ],
)
def test_requests_are_refused_as_those_of_predict(
    client, refused, png, query, content, status, code
) -> None:
    body = png if content is None else content
    refused(client.post(f"/embed{query}", content=body, headers=PNG), status, code)


def test_features_need_a_key_and_are_counted_by_their_times_not_as_predictions(
    client, keyed, png
) -> None:
    assert keyed.post("/embed").status_code == 401

    def counts() -> list[float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        samples = {one.name: one.value for family in families for one in family.samples}
        times = ("decode_seconds_count", "queue_wait_seconds_count", "model_seconds_count")
        return [samples.get(f"eulerlora_{name}", 0) for name in (*times, "predictions_total")]

    *times, predictions = counts()
    response = client.post("/embed", files={"file": ("a", png)})
    assert "queue;dur=" in response.headers["Server-Timing"]
    assert counts() == [*(count + 1 for count in times), predictions]
