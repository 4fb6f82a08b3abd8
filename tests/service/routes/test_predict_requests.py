"""POST /predict: invalid parameters and uploads."""

import pytest


@pytest.mark.parametrize(
    ("parameter", "query", "value"),
    [
        ("mode", "mode=zzmodezz", "zzmodezz"),
        ("mode", "mode=", None),
        ("samples", "mode=stoch&samples=0", None),
        ("samples", "mode=stoch&samples=-1", "-1"),
        ("samples", "mode=stoch&samples=65", "65"),
        ("samples", "mode=stoch&samples=1e9", "1e9"),
        ("samples", "mode=stoch&samples=NaN", "NaN"),
        ("samples", "mode=stoch&samples=4.5", "4.5"),
        ("samples", "mode=stoch&samples=", None),
        ("samples", "samples=3", "3"),
        ("samples", "mode=det&samples=1", None),
        ("samples", "mode=stoch&samples=11&samples=12", "12"),
        ("mode", "mode=det&mode=det", None),
        ("sample", "sample=31337", "31337"),
        ("sample", "sample=31337&sample=31337", "31337"),
        ("seed", "seed=-1", "-1"),
        ("seed", "seed=4294967297", "4294967297"),
        ("seed", "seed=4294967296", None),
        ("seed", "seed=abc", "abc"),
        ("seed", "seed=1&seed=1", None),
        ("detail", "detail=zzdetailzz", "zzdetailzz"),
        ("coverage", "coverage=zz0.9", "zz0.9"),
        ("coverage", "coverage=17", "17"),
        ("coverage", "coverage=0.9&coverage=0.9", None),
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


@pytest.mark.parametrize("name", ["xyzzy", ""])
def test_an_unknown_model_is_a_404_without_echo(post_image, refused, png, name) -> None:
    response = post_image(png, model=name)
    assert "served models are: tiny" in refused(response, 404, "unknown_model")
    assert "xyzzy" not in response.text


def test_parameters_are_checked_before_the_upload(post_image, refused) -> None:
    refused(post_image(b"no image", "text/plain", mode="det", samples=4), 422, "invalid_parameter")
    refused(post_image(b"no image", "text/plain", model="xyzzy"), 404, "unknown_model")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({}, 422, "invalid_upload"),
        ({"json": {"image": "zzname"}}, 415, "unsupported_media"),
        ({"files": {"file": ("a.png", b"zzname")}}, 415, "unsupported_media"),
        ({"files": {"file": ("a.png", b"\xff\xd8\xffzzname")}}, 422, "unusable_image"),
        (
            {"content": b"zzname", "headers": {"Content-Type": "multipart/form-data"}},
            400,
            "malformed_body",
        ),
    ],
    ids=["no body", "JSON", "text file", "broken image", "no boundary"],
)
def test_an_invalid_upload_is_refused_without_echo(client, refused, sent, status, code) -> None:
    response = client.post("/predict", **sent)
    refused(response, status, code)
    assert "zzname" not in response.text


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("mode=other", "mode: expected 'det', 'stoch' or 'adaptive'"),
        ("mode=stoch&samples=65", "samples: expected a number of at most 64"),
        ("mode=stoch&samples=0", "samples: expected a number of at least 1"),
        ("seed=4294967296", "seed: expected a number of at most 4294967295"),
        ("seed=1.0", "seed: expected a whole number in plain digits"),
        ("seed=1&seed=2", "seed: expected once, got 2 times"),
        ("sample=4", "sample: unknown parameter"),
        ("samples=4", "samples: expected only with mode=stoch"),
    ],
)
def test_the_detail_states_what_a_parameter_expects(client, refused, png, query, detail) -> None:
    response = client.post(f"/predict?{query}", content=png, headers={"Content-Type": "image/png"})
    assert refused(response, 422, "invalid_parameter") == detail
