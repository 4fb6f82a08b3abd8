"""The client of triage against a real service, in this process and in another one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clinic.tests.runs import mel_policy, mel_policy_file
from eulerlora_client import (
    AsyncTriageClient,
    Disposition,
    TriageClient,
    TriageResult,
    UnsupportedMedia,
)
from tests.eulerlora_client.runs import random_png
from tests.program import run
from tests.server_process import ServerProcess, serving
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys


@pytest.fixture
def client(live: int) -> Iterator[TriageClient]:
    with TriageClient(f"http://127.0.0.1:{live}") as client:
        yield client


def test_a_triage_result_is_typed_and_equals_the_response(client: TriageClient, live: int) -> None:
    url = f"http://127.0.0.1:{live}/triage"
    served = httpx.post(url, content=random_png(), headers={"Content-Type": "image/png"}).json()
    result = client.triage(random_png())
    assert isinstance(result.disposition, Disposition)
    sent = result.model_dump(mode="json", exclude_unset=True)
    served["prediction"]["request_id"] = result.prediction.request_id
    assert sent == served
    assert result.label_name == result.prediction.label.upper()
    assert result.policy.hash == mel_policy().hash == client.policy().hash


def test_many_and_a_batch_return_the_same_dispositions_with_problems_in_order(
    client: TriageClient, live: int
) -> None:
    images = [random_png(), b"text", random_png(1)]

    async def asynchronous() -> tuple[list[object], list[object]]:
        async with AsyncTriageClient(f"http://127.0.0.1:{live}") as other:
            many = [result async for result in other.triage_many(images, 2, samples=2)]
            return many, list(await other.triage_batch(images, samples=2))

    many = list(client.triage_many(images, 2, samples=2))
    for results in (many, client.triage_batch(images, samples=2), *asyncio.run(asynchronous())):
        first, broken, last = results
        assert isinstance(broken, UnsupportedMedia)
        assert (broken.status, broken.request_id is not None) == (415, True)
        for result, expected in ((first, many[0]), (last, many[2])):
            assert isinstance(result, TriageResult)
            assert isinstance(expected, TriageResult)
            assert result.disposition == expected.disposition
            assert result.prediction.samples == 2
            assert result.prediction.seed == expected.prediction.seed


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path
) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    write_keys(keys, client_with("clinic", "clinic-key"))
    policy = mel_policy_file(keys.with_name("policy.toml"))
    with serving(checkpoint_folder, "--keys", keys, "--policy", policy) as server:
        server.wait_for("/readyz", 200)
        yield server


def test_the_command_reads_its_key_from_a_file_or_a_variable(
    guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, key = tmp_path / "1.png", tmp_path / "key"
    image.write_bytes(random_png())
    key.write_text("clinic-key\n")
    options = (image, "--url", guarded.url)
    done = run("triage", *options)
    assert (done.status, "An API key is required" in done.err, done.out) == (1, True, "")
    assert run("triage", *options, "--key-file", key).status == 0
    monkeypatch.setenv("EULERLORA_KEY", "clinic-key")
    assert run("triage", *options).status == 0
