"""`samples=auto` over HTTP: what is asked, answered and refused."""

import pytest

AUTO = {"mode": "stoch", "samples": "auto"}


def test_the_answer_says_how_many_samples_it_took_and_its_standard_errors(post_image, png) -> None:
    response = post_image(png, **AUTO)
    assert response.status_code == 200
    body = response.json()
    assert 1 <= body["samples"] <= 16
    assert body["trajectories"] == 2 * body["samples"]
    assert set(body["standard_error"]) == {"msp", "entropy"}
    assert all(0 <= error < 1 for error in body["standard_error"].values())
    assert (body["ood"], body["ood_threshold"]) == (None, None)  # none is calibrated for auto
    assert {"decode", "queue", "model"} == {
        each.split(";")[0].strip() for each in response.headers["Server-Timing"].split(",")
    }


def test_the_same_question_gets_the_same_answer_and_another_seed_another(post_image, png) -> None:
    first, again, other = (post_image(png, **AUTO, **seed).json() for seed in ({}, {}, {"seed": 5}))
    assert first["seed"] == again["seed"]
    assert first["samples"] == again["samples"]
    assert first["probabilities"] == pytest.approx(again["probabilities"], abs=1e-6)
    assert first["probabilities"] != pytest.approx(other["probabilities"], abs=1e-6)


def test_only_auto_has_standard_errors(post_image, png) -> None:
    for question in ({}, {"mode": "stoch"}, {"mode": "stoch", "samples": 16}):
        assert "standard_error" not in post_image(png, **question).json()


@pytest.mark.parametrize("samples", ["Auto", "AUTO", "auto ", "automatic", "", "0", "65", "4.0"])
def test_what_is_neither_auto_nor_a_number_in_range_is_refused(
    post_image, refused, png, samples: str
) -> None:
    detail = refused(post_image(png, mode="stoch", samples=samples), 422, "invalid_parameter")
    assert detail.startswith("samples: ")


def test_who_misspells_auto_is_told_what_is_wanted(post_image, refused, png) -> None:
    detail = refused(post_image(png, mode="stoch", samples="AUTO"), 422, "invalid_parameter")
    assert detail.endswith("wanted a whole number in plain digits, or auto")


def test_auto_belongs_to_stoch(post_image, refused, png) -> None:
    for mode in ({}, {"mode": "det"}):
        detail = refused(post_image(png, **mode, samples="auto"), 422, "invalid_parameter")
        assert detail == "samples: belongs to mode=stoch"


def test_each_image_of_a_batch_takes_what_it_takes_alone(client, post_image, photo, encode) -> None:
    pictures = [encode(photo.rotate(90 * turn), "PNG") for turn in range(4)]
    files = [("files", (f"{index}.png", each)) for index, each in enumerate(pictures)]
    results = client.post("/predict/batch", params=AUTO, files=files).json()["results"]
    for picture, found in zip(pictures, results, strict=True):
        alone = post_image(picture, **AUTO).json()
        assert found["samples"] == alone["samples"]
        assert found["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


def test_the_samples_that_auto_takes_are_counted(client, post_image, png) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        name = 'eulerlora_auto_samples_count{model="tiny"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    post_image(png, **AUTO)
    post_image(png, mode="stoch")
    assert counted() == before + 1
