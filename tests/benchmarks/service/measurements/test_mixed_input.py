import asyncio
import itertools
from io import BytesIO
from types import SimpleNamespace

import pytest
from PIL import Image

from benchmarks.service.inputs.bad_requests import Case, bad_cases, odd_cases, only
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.request import post
from benchmarks.service.measurements import mixed_input
from benchmarks.service.measurements.mixed_input import NOTHING, mix, right


@pytest.fixture(scope="module")
def photograph() -> bytes:
    return made_up_photographs(1)[0]


def test_made_up_photographs_are_alike_in_form_and_differ_in_content() -> None:
    first, second = made_up_photographs(2)
    assert first != second
    with Image.open(BytesIO(first)) as image:
        assert (image.format, image.size) == ("JPEG", (600, 450))


def test_every_case_has_a_name_of_its_own(photograph) -> None:
    cases = bad_cases(photograph) + odd_cases(photograph)
    assert len({case.name for case in cases}) == len(cases)


def test_a_wrong_status_and_a_lost_request_are_noticed(standing, monkeypatch) -> None:
    good = [Case("good", post(b"good"), only(200))]
    bad = [Case("bad", post(b"bad"), only(422)), Case("lost", post(b"lost"), only(422))]
    answers = {b"good": 200, b"bad": 500, b"lost": 0}
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # a second for each request
    monkeypatch.setattr(mixed_input, "time", clock)
    with standing(lambda _, body: answers[body]) as port:
        found = asyncio.run(mix(port, good, bad, 100))
    assert {(case.name, status) for case, status in found} == {
        ("good", 200), ("bad", 500), ("lost", NOTHING),
    }  # fmt: skip
    assert [case.name for case, status in found if right(case, status)] == ["good"]
