"""The client against the real service: its application on a socket, and its own process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eulerlora_client import (
    AsyncTriageClient,
    BodyTooLarge,
    InvalidParameter,
    InvalidUpload,
    ModelDetails,
    ModelSummary,
    NotAuthenticated,
    Prediction,
    Problem,
    QuotaExceeded,
    RetryPolicy,
    TriageClient,
    UnknownModel,
    UnsupportedMedia,
    UnusableImage,
)
from service.auth.key_file import write_clients
from tests.eulerlora_client.runs import mel_policy_file, random_png, triage
from tests.server_process import ServerProcess, serving
from tests.service.key_clients import client as client_with

STOCH = {"mode": "stoch", "samples": 4, "detail": True}


@pytest.fixture
def client(live: int) -> Iterator[TriageClient]:
    with TriageClient(f"http://127.0.0.1:{live}") as client:
        yield client


def test_auto_gets_its_samples_and_standard_errors(client: TriageClient) -> None:
    found = client.predict(random_png(), mode="stoch", samples="auto", seed=3)
    assert found.samples is not None
    assert 1 <= found.samples <= 16
    assert found.standard_error is not None
    assert found.standard_error.entropy >= 0
    fixed = client.predict(random_png(), mode="stoch", samples=found.samples, seed=3)
    assert fixed.standard_error is None


def test_the_answer_is_the_service_s_own(client: TriageClient, live: int) -> None:
    url = f"http://127.0.0.1:{live}/predict?mode=stoch&samples=4&detail=trajectories"
    served = httpx.post(url, content=random_png(), headers={"Content-Type": "image/png"}).json()
    found = client.predict(random_png(), **STOCH)  # type: ignore[arg-type]
    for name in set(Prediction.model_fields) - {"request_id"}:
        assert found.model_dump(mode="json")[name] == served.get(name), name
    assert (found.warnings, len(found.trajectory_labels)) == ((), found.trajectories)
    assert client.predict(random_png(), **STOCH).probabilities == found.probabilities  # type: ignore[arg-type]


def test_both_clients_give_the_same(client: TriageClient, live: int) -> None:
    images = [random_png(seed) for seed in range(5)]

    async def ask() -> list[Prediction | Problem]:
        async with AsyncTriageClient(f"http://127.0.0.1:{live}") as other:
            return [each async for each in other.predict_many(images, 2)]

    ours, others = list(client.predict_many(images, 2)), asyncio.run(ask())
    for one, other in zip(ours, others, strict=True):
        assert isinstance(one, Prediction)
        assert isinstance(other, Prediction)
        assert one.seed == other.seed
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_bad_images_among_good_ones_have_their_own_problems(client: TriageClient) -> None:
    images = [random_png(), b"", b"text", random_png()[:-100], bytes(200_000), random_png(1)]
    assert [type(each) for each in client.predict_many(images, 3)] == [
        Prediction,
        InvalidUpload,
        UnsupportedMedia,
        UnusableImage,
        BodyTooLarge,
        Prediction,
    ]


def test_what_is_served_can_be_describe_settings(client: TriageClient) -> None:
    (summary,) = client.models()
    assert summary == ModelSummary(
        name="tiny", revision=summary.revision, classes=("bkl", "mel", "nv"), default=True
    )
    details = client.model("tiny")
    assert isinstance(details, ModelDetails)
    assert [each.description for each in details.classes] == ["BKL", "MEL", "NV"]
    assert (details.max_body_bytes, details.thresholds[0].mode) == (100_000, "det")
    for ask in (lambda: client.model("other"), lambda: client.predict(random_png(), model="other")):
        with pytest.raises(UnknownModel):
            ask()


def test_a_refusal_names_the_parameter_and_the_request(client: TriageClient) -> None:
    with pytest.raises(InvalidParameter, match="samples: belongs to mode=stoch") as refused:
        client.predict(random_png(), samples=4)
    assert refused.value.request_id


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path
) -> Iterator[ServerProcess]:
    """`eulerlora serve --keys`, for a clinic, and for a client who may ask once a minute."""
    keys = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    limited = client_with("limited", "limited-key").model_copy(update={"requests_per_minute": 1})
    write_clients(keys, [client_with("clinic", "clinic-key"), limited])
    with serving(checkpoint_folder, "--keys", keys) as server:
        server.wait_for("/readyz", 200)
        yield server


def test_a_key_lets_in_and_nothing_else_does(guarded: ServerProcess) -> None:
    with TriageClient(guarded.url, "clinic-key") as client:
        assert client.predict(random_png()).model == "tiny"
    for key in (None, "wrong-key"):
        with TriageClient(guarded.url, key) as client, pytest.raises(NotAuthenticated):
            client.predict(random_png())


def test_a_used_up_quota_says_when_to_come_back(guarded: ServerProcess) -> None:
    with TriageClient(guarded.url, "limited-key", retry=RetryPolicy(quota_s=0)) as client:
        client.predict(random_png())
        with pytest.raises(QuotaExceeded) as refused:
            client.predict(random_png())
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= 60


def test_the_command_shows_its_key_from_a_file_or_a_variable(
    guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, key = tmp_path / "1.png", tmp_path / "key"
    image.write_bytes(random_png())
    key.write_text("clinic-key\n")
    options = (image, "--url", guarded.url, "--policy", mel_policy_file(tmp_path / "policy.toml"))
    done = triage(*options)
    assert (done.status, "An API key is required" in done.err, done.out) == (1, True, "")
    assert triage(*options, "--key-file", key).status == 0
    monkeypatch.setenv("EULERLORA_KEY", "clinic-key")
    assert triage(*options).status == 0
