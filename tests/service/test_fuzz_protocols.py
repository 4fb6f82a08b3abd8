"""Malformed bodies have documented answers."""

import random
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.eulerlora_client.runs import mel_policy
from tests.service.conftest import PROBLEM_KEYS, app_of

BODIES = {"json": 150, "binary": 150, "dicom": 150, "image": 600}
STATUSES = {200, 400, 413, 415, 422}


@pytest.fixture(scope="module")
def dicom_client(model) -> Iterator[TestClient]:
    """A client of a service that accepts DICOM files, with a policy for the tiny model."""
    limits = {"images": {"dicom": True}, "decoding": {"client_s_per_minute": 10_000}}
    with TestClient(app_of(model, policy=mel_policy(), **limits)) as client:
        yield client


@pytest.mark.parametrize("protocol", BODIES)
def test_every_malformed_body_has_a_documented_answer(dicom_client, protocol: str) -> None:
    pytest.importorskip("pydicom")
    from tests.protocol_bodies import PROTOCOLS  # noqa: PLC0415

    draw = random.Random(protocol)
    for _ in range(BODIES[protocol]):
        body = PROTOCOLS[protocol](draw)
        path = "/v2/models/tiny/infer" if body.path == "/infer" else body.path
        response = dicom_client.post(path, content=body.content, headers=body.headers)
        assert response.status_code in STATUSES, (body, response.text)
        if response.status_code != 200:
            expected = {"error"} if path.endswith("/infer") else PROBLEM_KEYS
            assert set(response.json()) == expected, body
