"""POST /predict: results equal those of the library."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from starlette.testclient import TestClient

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA

KEYS = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "ood_scores", "warnings",
}  # fmt: skip
TIMEOUT_S = 120
STOCH = {"mode": "stoch", "samples": 4}


def result_of(response: Any) -> dict[str, Any]:
    """Returns the body of a successful response without the request id."""
    assert response.status_code == 200, response.text
    return {key: value for key, value in response.json().items() if key != "request_id"}


def check_against_library(body: dict[str, Any], prediction: Any) -> None:
    """Checks that the response equals the prediction of the library to 6 significant digits."""
    assert list(body["probabilities"].values()) == pytest.approx(
        prediction.probabilities[0].tolist(), rel=6e-6, abs=1e-7
    )
    for name in ("entropy", "expected_entropy", "mutual_information", "msp"):
        assert body[name] == pytest.approx(getattr(prediction, name).item(), rel=6e-6, abs=1e-6)
    assert body["label"] == prediction.labels[0]
    assert body["trajectories"] == prediction.trajectories.shape[1]
    assert body["ood"] == (None if prediction.ood is None else prediction.ood.item())


def test_a_result_has_the_keys_of_the_contract(post_image, png, model) -> None:
    response = post_image(png)
    body = response.json()
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert set(body) == KEYS
    assert (body["model"], body["revision"]) == ("tiny", model.revision)
    assert (body["mode"], body["samples"], body["trajectories"]) == ("det", 1, 2)
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert body["warnings"] == []
    assert 0 <= body["seed"] < 2**32


@pytest.mark.parametrize(
    ("parameters", "samples", "trajectories"),
    [({}, 1, 2), ({"mode": "det"}, 1, 2), ({"mode": "stoch"}, 4, 8), (STOCH, 4, 8),
     ({"mode": "stoch", "samples": 1}, 1, 2), ({"mode": "stoch", "samples": 64}, 64, 128)],
)  # fmt: skip
def test_every_adapter_and_sample_has_a_trajectory(
    post_image, png, parameters, samples, trajectories
) -> None:
    body = post_image(png, detail="trajectories", **parameters).json()
    assert (body["samples"], body["trajectories"]) == (samples, trajectories)
    assert len(body["trajectory_probabilities"]) == trajectories


@pytest.mark.parametrize("parameters", [{}, STOCH])
def test_trajectories_and_summary_are_consistent(post_image, png, parameters) -> None:
    body = post_image(png, detail="trajectories", **parameters).json()
    assert set(body) == KEYS | {"trajectory_probabilities"}
    trajectories = np.array(body["trajectory_probabilities"])
    probabilities = np.array(list(body["probabilities"].values()))
    assert list(body["probabilities"]) == ["bkl", "mel", "nv"]
    near = partial(pytest.approx, abs=1e-5)  # numbers are rounded to six digits
    assert trajectories.sum(axis=1) == near(1)
    assert probabilities.sum() == near(1)
    assert trajectories.mean(axis=0) == near(probabilities)
    assert body["entropy"] == near(scipy_entropy(probabilities))
    assert body["expected_entropy"] == near(scipy_entropy(trajectories, axis=1).mean())
    assert body["mutual_information"] == near(body["entropy"] - body["expected_entropy"])
    assert body["msp"] == probabilities.max()
    assert body["label"] == list(body["probabilities"])[probabilities.argmax()]
    plain = result_of(post_image(png, **parameters))
    assert plain == {key: body[key] for key in KEYS - {"request_id"}}


def test_results_are_reproducible_and_depend_on_the_seed(post_image, png, photo, encode):
    first = result_of(post_image(png, **STOCH))
    assert result_of(post_image(png, **STOCH)) == first
    assert result_of(post_image(png, **STOCH, seed=first["seed"])) == first
    other = result_of(post_image(png, **STOCH, seed=(first["seed"] + 1) % 2**32))
    assert other["probabilities"] != first["probabilities"]
    assert result_of(post_image(encode(photo.rotate(180), "PNG"), **STOCH))["seed"] != first["seed"]


def test_the_seed_does_not_affect_det(post_image, png) -> None:
    one, two = result_of(post_image(png, seed=1)), result_of(post_image(png, seed=2))
    assert (one.pop("seed"), two.pop("seed")) == (1, 2)
    assert one == two


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_multipart_and_raw_bodies_have_the_same_result(
    client, post_image, photo, encode, file_format
) -> None:
    data, media_type = encode(photo, file_format), f"image/{file_format.lower()}"
    raw = result_of(post_image(data, media_type, **STOCH))
    form = client.post("/predict", params=STOCH, files={"file": ("a", data, media_type)})
    assert result_of(form) == raw
    assert raw["warnings"] == []


def test_lossless_formats_of_an_image_have_the_same_result(post_image, png, photo, encode) -> None:
    webp = post_image(encode(photo, "WEBP", lossless=True), "image/webp", **STOCH)
    assert result_of(webp) == result_of(post_image(png, **STOCH))


@pytest.mark.parametrize("seed", [None, 0, 2**32 - 1])
@pytest.mark.parametrize("parameters", [{"mode": "det"}, STOCH, {"mode": "stoch", "samples": 3}])
def test_the_result_equals_that_of_the_library_for_the_same_file(
    checkpoint_folder: Path, tmp_path: Path, post_image, photo, encode, parameters, seed
) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(encode(photo, "JPEG"))
    prediction = EulerLoRA.load(checkpoint_folder).predict([file], **parameters, seed=seed)
    seeded = parameters if seed is None else parameters | {"seed": seed}
    check_against_library(post_image(file.read_bytes(), "image/jpeg", **seeded).json(), prediction)


def test_a_connection_stays_open_after_a_problem(live, png) -> None:
    url, body = f"http://127.0.0.1:{live}/predict", png * 10
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=TIMEOUT_S) as session:
        for parameters, status in (({"seed": "x"}, 422), ({"model": "x"}, 404), ({}, 200)):
            response = session.post(
                url, params=parameters, content=body, headers={"Content-Type": "image/png"}
            )
            assert response.status_code == status


@pytest.mark.parametrize("threshold", [0.0, 1.0, None])
def test_ood_follows_the_threshold_of_the_checkpoint(
    make_network, make_config, make_app, png, threshold
) -> None:
    network = make_network()
    fields = {"mode": "det", "samples": 1, "kept": 0.9, "images": 9, "data": "test"}
    thresholds = () if threshold is None else ({**fields, "msp": threshold},)
    config = make_config(network, thresholds=thresholds)
    model = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model)) as client:
        det = client.post("/predict", **sent).json()
        stoch = client.post("/predict?mode=stoch", **sent).json()
    assert (det["ood"], det["ood_threshold"]) == ({0.0: False, 1.0: True, None: None}[threshold],
                                                  threshold)  # fmt: skip
    assert (stoch["ood"], stoch["ood_threshold"]) == (None, None)


def test_server_timing_has_decoding_queue_and_model(post_image, png) -> None:
    parts = post_image(png).headers["Server-Timing"].split(", ")
    durations = {name: float(value) for name, value in (part.split(";dur=") for part in parts)}
    assert list(durations) == ["decode", "queue", "model"]
    assert all(value >= 0 for value in durations.values())
    assert durations["model"] > 0


def test_a_wrong_declared_type_gives_a_warning_and_the_same_result(client, post_image, png) -> None:
    expected = result_of(post_image(png))
    for response in (
        post_image(png, "image/jpeg"),
        client.post("/predict", files={"file": ("a.png", png, "image/webp")}),
    ):
        result = result_of(response)
        assert len(result.pop("warnings")) == 1
        assert result == {key: value for key, value in expected.items() if key != "warnings"}


def test_model_output_that_is_not_finite_is_a_500(checkpoint_folder: Path, make_app, png) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model)) as client:
        good = result_of(client.post("/predict", **sent))
        bias = model.network.heads.bias[1, 0].item()
        with torch.no_grad():
            model.network.heads.bias[1, 0] = torch.nan
        response = client.post("/predict", **sent)
        with torch.no_grad():
            model.network.heads.bias[1, 0] = bias
        assert result_of(client.post("/predict", **sent)) == good
    assert response.status_code == 500
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "model_failure"
    assert response.json()["request_id"] == response.headers["X-Request-ID"]


def test_the_openapi_document_describes_uploads_and_problems(client) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    assert set(operation["requestBody"]["content"]) == {
        "multipart/form-data", "image/jpeg", "image/png", "image/webp",
    }  # fmt: skip
    assert {parameter["name"] for parameter in operation["parameters"]} == {
        "mode", "samples", "seed", "model", "coverage", "detail",
    }  # fmt: skip
    assert {"200", "400", "404", "413", "415", "422", "500"} <= set(operation["responses"])
