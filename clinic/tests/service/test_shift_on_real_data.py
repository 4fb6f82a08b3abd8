"""The embedded model's shift monitor on real pictures: the model's test lesions, and other ones."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora_clinic.monitoring import ShiftMonitor
from eulerlora_clinic.service.shift_monitor import FEATURE_DISTANCE, MSP, ExpectedRates
from training.data.datasets import checkpoint_dataset, read_ood_set
from training.data.images import LabelledImage
from training.data.registry import OodSettings

pytestmark = [pytest.mark.data, pytest.mark.slow]

TEST_PICTURES, SHIFTED_PICTURES, CAST_PICTURES = 600, 120, 480
ORDERS = 20
BATCH = 50

Events = dict[str, int | None]


@pytest.fixture(scope="module")
def embedded() -> EulerLoRA:
    return EulerLoRA.default()


@pytest.fixture(scope="module")
def expected(embedded: EulerLoRA) -> ExpectedRates:
    threshold = embedded.config.threshold(embedded.options())
    assert threshold is not None
    return ExpectedRates.of(threshold)


@pytest.fixture(scope="module")
def test_lesions(embedded: EulerLoRA, real_data: Path) -> list[Tensor]:
    """One picture of each of some test lesions."""
    part = checkpoint_dataset(embedded.config, real_data).parts["test"]
    lesions = {image.cluster: image for image in part}
    return list(pixels(list(lesions.values()), TEST_PICTURES))


def pixels(images: Sequence[LabelledImage], count: int) -> Iterator[Tensor]:
    """Yields some of the pictures as (3, height, width) in [0, 1]."""
    for image in random.Random(0).sample(images, min(count, len(images))):
        yield image.pixels() / 255


@pytest.fixture(scope="module")
def events_of(
    embedded: EulerLoRA, expected: ExpectedRates
) -> Callable[[Iterable[Tensor]], list[Events]]:
    """The events of each picture in mode det; pictures of a batch must have equal size."""

    def events(batch: Tensor) -> Iterator[Events]:
        prediction = embedded.predict(batch, "det")
        assert prediction.ood_scores is not None
        for index, label in enumerate(prediction.labels):
            msp, distance = (
                float(prediction.ood_scores[name].value[index]) for name in (MSP, FEATURE_DISTANCE)
            )
            yield expected.events(msp, distance, embedded.classes.index(label))

    return lambda batches: [event for batch in batches for event in events(batch)]


def alarms(pictures: Sequence[Events], expected: ExpectedRates) -> list[bool]:
    """Returns for random orders of the pictures whether there is an alarm."""

    def alarm(seed: int) -> bool:
        monitor = ShiftMonitor(expected.rates)
        for events in random.Random(seed).sample(pictures, len(pictures)):
            monitor.record(events, expected.rates)
        return monitor.alarm

    return [alarm(seed) for seed in range(ORDERS)]


def test_the_test_lesions_give_no_alarm(expected, test_lesions, events_of) -> None:
    pictures = events_of(torch.stack(test_lesions).split(BATCH))
    assert len(pictures) == TEST_PICTURES
    assert not any(alarms(pictures, expected))


@pytest.mark.parametrize("archive", ["ph2.tar", "pad-ufes-20.tar"])
def test_pictures_of_another_camera_give_an_alarm(expected, events_of, real_data, archive) -> None:
    images = read_ood_set(OodSettings(kind="images", path=archive), real_data).images
    pictures = events_of(picture[None] for picture in pixels(images, SHIFTED_PICTURES))
    assert all(alarms(pictures, expected))


@pytest.mark.parametrize("gains", [(1.0, 0.8, 0.6), (0.6, 0.8, 1.0)], ids=["warm", "cold"])
def test_a_colour_cast_gives_an_alarm(expected, events_of, test_lesions, gains) -> None:
    cast = torch.tensor(gains)[:, None, None]
    shifted = torch.stack(test_lesions[:CAST_PICTURES]) * cast
    assert all(alarms(events_of(shifted.split(BATCH)), expected))
