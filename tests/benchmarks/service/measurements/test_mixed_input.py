"""Cases and statuses of mixed input."""

import asyncio
import itertools
from io import BytesIO
from types import SimpleNamespace

import pytest
from PIL import Image

from benchmarks.service.inputs.bad_requests import Case, bad_cases, only, unusual_cases
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.request import post
from benchmarks.service.measurements import mixed_input
from benchmarks.service.measurements.mixed_input import NO_RESPONSE, is_documented, mix


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return synthetic_images(1)[0]


def test_synthetic_images_have_equal_sizes_and_different_contents() -> None:
    first, second = synthetic_images(2)
    assert first != second
    with Image.open(BytesIO(first)) as image:
        assert (image.format, image.size) == ("JPEG", (600, 450))


def test_every_case_has_a_unique_name(jpeg) -> None:
    cases = bad_cases(jpeg) + unusual_cases(jpeg)
    assert len({case.name for case in cases}) == len(cases)


def test_wrong_statuses_and_lost_requests_are_counted(fake_server, monkeypatch) -> None:
    valid = [Case("good", post(b"good"), only(200))]
    invalid = [Case("bad", post(b"bad"), only(422)), Case("lost", post(b"lost"), only(422))]
    statuses = {b"good": 200, b"bad": 500, b"lost": 0}
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # one second per request
    monkeypatch.setattr(mixed_input, "time", clock)
    with fake_server(lambda _, body: statuses[body]) as port:
        counts = asyncio.run(mix(port, valid, invalid, 100))
    assert {(case.name, status) for case, status in counts} == {
        ("good", 200), ("bad", 500), ("lost", NO_RESPONSE),
    }  # fmt: skip
    assert [case.name for case, status in counts if is_documented(case, status)] == ["good"]
