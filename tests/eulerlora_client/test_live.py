"""The clients against a real service, in this process and in another one."""

from collections.abc import Iterator

import httpx
import pytest

from eulerlora_client import TriageClient
from tests.eulerlora_client.runs import random_png
from tests.problems import raises_problem

STOCH = {"mode": "stoch", "samples": 4, "detail": True}


@pytest.fixture
def client(live: int) -> Iterator[TriageClient]:
    with TriageClient(f"http://127.0.0.1:{live}") as client:
        yield client


def test_a_prediction_equals_the_response(client: TriageClient, live: int) -> None:
    url = f"http://127.0.0.1:{live}/predict?mode=stoch&samples=4&detail=trajectories"
    served = httpx.post(url, content=random_png(), headers={"Content-Type": "image/png"}).json()
    result = client.predict(random_png(), **STOCH)  # type: ignore[arg-type]
    sent = result.model_dump(mode="json", exclude_unset=True)
    assert sent | {"request_id": served["request_id"]} == served
    assert (result.warnings, len(result.trajectory_labels)) == ((), result.trajectories)
    assert client.predict(random_png(), **STOCH).probabilities == result.probabilities  # type: ignore[arg-type]


def test_features_equal_the_response_and_a_problem_is_in_its_position(
    client: TriageClient, live: int
) -> None:
    url = f"http://127.0.0.1:{live}/embed"
    served = httpx.post(url, content=random_png(), headers={"Content-Type": "image/png"}).json()
    one, problem = client.embed_many([random_png(), b"text"], model="tiny")
    sent = one.model_dump(mode="json", exclude_unset=True)
    assert sent | {"request_id": served["request_id"]} == served
    assert problem.code == "unsupported_media"
    assert client.embed(random_png()).embedding == one.embedding
    with raises_problem("unknown_model"):
        client.embed(random_png(), "other")


def test_models_and_their_details_are_returned(client: TriageClient) -> None:
    (summary,) = client.models()
    assert (summary.name, summary.classes, summary.default) == ("tiny", ("bkl", "mel", "nv"), True)
    details = client.model("tiny")
    assert details.revision == summary.revision
    assert [label.description for label in details.classes] == ["BKL", "MEL", "NV"]
    assert (details.max_body_bytes, details.thresholds[0].options.mode) == (100_000, "det")
    for request in (
        lambda: client.model("other"),
        lambda: client.predict(random_png(), model="other"),
    ):
        with raises_problem("unknown_model"):
            request()
