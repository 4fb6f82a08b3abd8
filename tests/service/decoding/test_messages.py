"""The messages of a decoder that foreign code may have written."""

import json
import os
import pickle
from typing import Any

import numpy as np
import pytest

from eulerlora.settings import Preprocessing
from service.decoding.details import Detail, sentences
from service.decoding.formats import Declared
from service.decoding.messages import DecodedInput, DecodeJob, Failure
from service.decoding.worker import run_job
from tests.service.decoding.frames import HEADER, frame
from tests.service.settings import settings_of

MAX_FIELDS_BYTES = 16 * 1024
JOB = DecodeJob(b"", Declared(None, "\udcff.png"), Preprocessing(size=8), "r")
PIXELS = 81
QUALITY = {"width": 9, "height": 9, "brightness": 0.5, "dark_share": 0, "bright_share": 0}
SIZES = next(number for number, text in enumerate(list(sentences())) if text.count("#") == 4)
LARGE = {"number": SIZES, "values": [2**40] * 4}
FIELDS: dict[str, Any] = {"content_seed": 1, "warnings": [], "quality": None}


def pixels(value: float = 0.5) -> bytes:
    return np.full(JOB.preprocessing.shape, value, np.float32).tobytes()


def answer(data: bytes, **fields: object) -> bytes:
    return frame(json.dumps(FIELDS | fields), data)


class Executed:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return os.abort, ()  # which coverage does not replace, as it does os._exit


def received(content: bytes, job: DecodeJob = JOB) -> DecodedInput | Failure:
    """The result in a message, read as by the service."""
    size = job.result_bytes(content[: HEADER.size])
    if size != len(content):
        raise ValueError("expected the message and no more")
    return job.result(memoryview(content))


@pytest.mark.parametrize("canvas", [None, (12, 9)])
def test_a_job_and_its_result_survive_the_way(png, canvas: tuple[int, int] | None) -> None:
    preprocessing = Preprocessing(size=8, canvas=canvas)
    job = DecodeJob(png, Declared("image/jpeg", "\udcff.png"), preprocessing, "r", True)
    sent = job.message()
    fields_bytes, content_bytes = HEADER.unpack(sent[: HEADER.size])
    fields = sent[HEADER.size : HEADER.size + fields_bytes]
    assert DecodeJob.of_message(fields, sent[-content_bytes:]) == job
    result = run_job(job, settings_of("images"))
    assert isinstance(result, DecodedInput)
    assert result.pixels.shape == preprocessing.shape
    back = received(result.message(), job)
    assert isinstance(back, DecodedInput)
    assert np.array_equal(back.pixels, result.pixels)
    assert back.__dict__ | {"pixels": None} == result.__dict__ | {"pixels": None}
    failure = Failure(kind="unsupported_media", detail=Detail(number=1))
    assert received(failure.message(), job) == failure


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Executed()),
        frame(pickle.dumps(Executed()).decode("latin-1"), pixels()),
        HEADER.pack(2, 2**32) + b"{}",
        HEADER.pack(MAX_FIELDS_BYTES + 1, 0) + bytes(MAX_FIELDS_BYTES + 1),
        HEADER.pack(0, 0),
        answer(pixels()[:-4]),
        answer(pixels() + bytes(4)),
        answer(pixels()) + b"{}",
        answer(b""),
        answer(pixels(np.nan)),
        answer(pixels(np.inf)),
        answer(pixels(-1)),
        answer(pixels(), content_seed=-1),
        answer(pixels(), content_seed=2**32),
        answer(pixels(), decode_s=0.1),  # which the service measures
        answer(pixels(), warnings=[{"code": "c"}]),
        answer(pixels(), warnings=[{"code": "frame", "message": "free text"}]),
        answer(pixels(), warnings=[{"code": "frame", "detail": {"number": len(sentences())}}]),
        answer(pixels(), warnings=[{"code": "free", "detail": {"number": 1}}]),
        answer(pixels(), warnings=20 * [{"code": "frame", "detail": {"number": 1}}]),
        answer(pixels(), quality=QUALITY | {"sharpness": 1}),
        answer(pixels(), another=1),
        frame('{"kind": "defect"}', pixels()),
        frame('{"kind": "defect", "text": "free text"}'),
        frame('{"kind": "defect", "exception": "free text"}'),
        frame('{"kind": "defect", "lines": [["free", 1]]}'),
        frame('{"kind": "defect", "lines": [["service.free text", 1]]}'),
        frame('{"kind": "defect", "lines": [["service\\n", 1]]}'),
        frame('{"kind": "defect", "lines": [["service", -1]]}'),
        frame('{"kind": "unusable_image", "detail": {"number": 1, "values": [1]}}'),
        frame('{"kind": "unusable_image", "detail": {"number": 1, "text": "free text"}}'),
        frame('{"kind": "unusable_image", "detail": {"number": -1}}'),
        frame(json.dumps({"kind": "unusable_image", "detail": {"number": SIZES}})),
        frame(json.dumps({"kind": "unusable_image", "detail": LARGE})),
        frame(json.dumps({"kind": "unusable_image", "detail": {"number": SIZES, "values": [1]}})),
        frame('{"kind": "not_ready"}'),
        frame("[" * 10_000),
    ],
)  # fmt: skip
def test_a_message_that_no_decoder_sends_is_refused_before_it_is_used(content: bytes) -> None:
    with pytest.raises(ValueError):
        received(content)


@pytest.mark.parametrize(
    "quality",
    [
        None,
        QUALITY | {"sharpness": float("inf")},
        QUALITY | {"sharpness": 1e9},
        QUALITY | {"sharpness": 1, "width": 10_000},
    ],
)
def test_a_quality_that_was_not_measured_is_refused(quality) -> None:
    job = DecodeJob(b"", Declared(), JOB.preprocessing, "r", with_quality=True, pixels=PIXELS)
    with pytest.raises(ValueError):
        received(answer(pixels(), quality=quality), job)
