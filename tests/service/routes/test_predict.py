"""`POST /predict`: results, and parameters that are refused."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from eulerlora import EulerLoRA
from eulerlora_contract.answers import WarningCode
from tests.service.conftest import encoded

KEYS = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "ood_scores", "warnings",
}  # fmt: skip
TIMEOUT_S = 120
STOCH = {"mode": "stoch", "samples": 4}


def result_of(response: Any) -> dict[str, Any]:
    """The body of a successful response without the request id.

    Leaves out the warning of the shift monitor, which follows from the images of earlier requests.
    """
    assert response.status_code == 200, response.text
    body = {key: value for key, value in response.json().items() if key != "request_id"}
    shift = WarningCode.DISTRIBUTION_SHIFT
    return body | {"warnings": [one for one in body["warnings"] if one["code"] != shift]}


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
    of_the_service = {"request_id", "model", "revision", "seed", "warnings"}
    assert body.keys() - of_the_service == prediction[0].keys() - {"file"}


def test_a_result_has_the_keys_of_the_contract(post_image, png, model) -> None:
    response = post_image(png)
    body = response.json()
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert set(body) == KEYS
    assert (body["model"], body["revision"]) == ("tiny", model.revision)
    assert (body["mode"], body["samples"], body["trajectories"]) == ("det", 1, 2)
    assert post_image(png, mode="stoch").json()["samples"] == 4
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert result_of(response)["warnings"] == []
    assert 0 <= body["seed"] < 2**32


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_multipart_and_raw_bodies_have_the_same_result(
    client, post_image, photo, file_format
) -> None:
    data, media_type = encoded(photo, file_format), f"image/{file_format.lower()}"
    raw = result_of(post_image(data, media_type, **STOCH))
    form = client.post("/predict", params=STOCH, files={"file": ("a", data, media_type)})
    assert result_of(form) == raw
    assert raw["warnings"] == []


@pytest.mark.parametrize("seed", [None, 0, 2**32 - 1])
@pytest.mark.parametrize(
    "parameters", [{"mode": "det"}, STOCH, {"mode": "stoch", "samples": 3}, {**STOCH, "views": 8}]
)
def test_the_result_equals_that_of_the_library_for_the_same_file(
    checkpoint_folder: Path, tmp_path: Path, post_image, photo, parameters, seed
) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(encoded(photo, "JPEG"))
    prediction = EulerLoRA.load(checkpoint_folder).predict([file], **parameters, seed=seed)
    seeded = parameters if seed is None else parameters | {"seed": seed}
    check_against_library(post_image(file.read_bytes(), "image/jpeg", **seeded).json(), prediction)


@pytest.mark.parametrize(
    ("mode", "views", "trajectories"), [("det", 8, 16), ("stoch", 8, 8), ("stoch", 2, 8)]
)
def test_an_answer_states_its_views_and_on_request_that_of_each_trajectory(
    post_image, png, mode, views, trajectories
) -> None:
    body = post_image(png, mode=mode, views=views, detail="trajectories").json()
    assert (body["views"], body["trajectories"]) == (views, trajectories)
    assert len(body["trajectory_probabilities"]) == trajectories
    assert sorted(body["trajectory_views"]) == sorted([*range(views)] * (trajectories // views))
    assert (body["ood"], body["warnings"][0]["code"]) == (None, "no_ood_threshold")
    total = 1 - sum(value**2 for value in body["probabilities"].values())
    assert sum(body["variance"].values()) == pytest.approx(total, abs=1e-4)
    assert body["variance"]["between_views"] > 0
    plain = post_image(png, mode=mode, detail="trajectories").json()
    assert not {"views", "trajectory_views"} & set(plain)
    assert plain["variance"]["between_views"] == 0


def test_a_connection_stays_open_after_a_problem(live, png) -> None:
    url, body = f"http://127.0.0.1:{live}/predict", png * 10
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=TIMEOUT_S) as session:
        for parameters, status in (({"seed": "x"}, 422), ({"model": "x"}, 404), ({}, 200)):
            response = session.post(
                url, params=parameters, content=body, headers={"Content-Type": "image/png"}
            )
            assert response.status_code == status


def test_a_wrong_declared_type_gives_a_warning_and_the_same_result(client, post_image, png) -> None:
    expected = result_of(post_image(png))
    for response in (
        post_image(png, "image/jpeg"),
        client.post("/predict", files={"file": ("a.png", png, "image/webp")}),
    ):
        result = result_of(response)
        (warning,) = result.pop("warnings")
        assert warning["code"] == WarningCode.DECLARED_TYPE_DIFFERS
        assert result == {key: value for key, value in expected.items() if key != "warnings"}


@pytest.mark.parametrize(
    ("parameter", "query", "value"),
    [
        ("mode", "mode=zzmodezz", "zzmodezz"),
        ("samples", "mode=det&samples=1", None),
        ("samples", "mode=stoch&samples=11&samples=12", "12"),
        ("views", "mode=stoch&samples=auto&views=8", None),
        ("sample", "sample=31337", "31337"),
        ("coverage", "coverage=zz0.9", "zz0.9"),
    ],
)
def test_an_invalid_parameter_is_a_422_with_its_name_and_without_its_value(
    client, refused, png, parameter, query, value
) -> None:
    response = client.post(f"/predict?{query}", content=png, headers={"Content-Type": "image/png"})
    detail = refused(response, 422, "invalid_parameter")
    assert detail.split(":")[0] == parameter
    if value is not None:
        assert value not in detail


def test_a_parameter_with_an_unprintable_name_is_refused_without_it(client, refused, png) -> None:
    for query in ("%3Cscript%3E=1", "%FF%0A=1", "x" * 65 + "=1", "%00=1"):
        response = client.post(
            f"/predict?{query}", content=png, headers={"Content-Type": "image/png"}
        )
        detail = refused(response, 422, "invalid_parameter")
        assert detail == "a parameter with an unprintable name: unknown parameter"


def test_a_query_of_many_parameters_is_refused_before_any_is_checked(post_image, refused) -> None:
    many = {f"unknown{number}": "1" for number in range(100)}
    assert "unknown" not in refused(post_image(b"", **many), 422, "invalid_parameter")


@pytest.mark.parametrize("name", ["xyzzy", ""])
def test_an_unknown_model_is_a_404_without_echo(post_image, refused, png, name) -> None:
    response = post_image(png, model=name)
    assert "served models are: tiny" in refused(response, 404, "unknown_model")
    assert "xyzzy" not in response.text


def test_parameters_are_checked_before_the_upload(post_image, refused) -> None:
    refused(post_image(b"no image", "text/plain", mode="det", samples=4), 422, "invalid_parameter")
    refused(post_image(b"no image", "text/plain", model="xyzzy"), 404, "unknown_model")
