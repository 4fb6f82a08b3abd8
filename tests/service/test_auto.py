"""`samples=auto` over HTTP: results and invalid parameters."""

import pytest

AUTO = {"mode": "stoch", "samples": "auto"}


def test_the_result_has_the_drawn_samples_and_standard_errors(post_image, png) -> None:
    response = post_image(png, **AUTO)
    assert response.status_code == 200
    body = response.json()
    assert 1 <= body["samples"] <= 16
    assert body["trajectories"] == 2 * body["samples"]
    assert body["sampled"] == (body["samples"] > 1) == ("standard_error" in body)
    assert body["rows"] == 2 * (body["samples"] + body["sampled"])
    assert (body["ood"], body["ood_threshold"]) == (None, None)  # there is no threshold for auto
    assert {"decode", "queue", "model"} == {
        entry.split(";")[0].strip() for entry in response.headers["Server-Timing"].split(",")
    }


def test_results_are_reproducible_and_depend_on_the_seed(post_image, png) -> None:
    first, again, other = (post_image(png, **AUTO, **seed).json() for seed in ({}, {}, {"seed": 5}))
    assert first["seed"] == again["seed"]
    assert first["samples"] == again["samples"]
    assert first["probabilities"] == pytest.approx(again["probabilities"], abs=1e-6)
    assert first["probabilities"] != pytest.approx(other["probabilities"], abs=1e-6)


def test_only_auto_has_standard_errors(post_image, png) -> None:
    for parameters in ({}, {"mode": "stoch"}, {"mode": "stoch", "samples": 16}):
        assert "standard_error" not in post_image(png, **parameters).json()


@pytest.mark.parametrize("samples", ["Auto", "AUTO", "auto ", "automatic", "", "0", "65", "4.0"])
def test_other_values_than_auto_and_numbers_in_range_are_refused(
    post_image, refused, png, samples: str
) -> None:
    detail = refused(post_image(png, mode="stoch", samples=samples), 422, "invalid_parameter")
    assert detail.startswith("samples: ")


def test_a_misspelled_auto_is_refused_with_the_expected_values(post_image, refused, png) -> None:
    detail = refused(post_image(png, mode="stoch", samples="AUTO"), 422, "invalid_parameter")
    assert detail.endswith("expected a whole number in plain digits, or auto")


def test_auto_requires_stoch(post_image, refused, png) -> None:
    for mode in ({}, {"mode": "det"}):
        detail = refused(post_image(png, **mode, samples="auto"), 422, "invalid_parameter")
        assert detail == "samples: expected only with mode=stoch"


def test_images_of_a_batch_have_the_same_results_as_alone(
    client, post_image, photo, encode
) -> None:
    images = [encode(photo.rotate(90 * turn), "PNG") for turn in range(4)]
    files = [("files", (f"{index}.png", image)) for index, image in enumerate(images)]
    results = client.post("/predict/batch", params=AUTO, files=files).json()["results"]
    for image, result in zip(images, results, strict=True):
        alone = post_image(image, **AUTO).json()
        assert result["samples"] == alone["samples"]
        assert result["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


def test_the_samples_of_auto_are_counted(client, post_image, png) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        name = 'eulerlora_auto_samples_count{model="tiny"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    post_image(png, **AUTO)
    post_image(png, mode="stoch")
    assert counted() == before + 1
