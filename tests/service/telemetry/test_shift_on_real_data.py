"""The embedded checkpoint's shift monitor on real pictures, which were not used to build it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.shift_monitor import replay
from eulerlora.model import EulerLoRA
from service.telemetry.shift_monitor import Reference
from training.data.datasets import checkpoint_dataset, read_ood_set
from training.data.images import LabelledImage, read_image
from training.recipe.schema import OodSettings

pytestmark = [pytest.mark.data, pytest.mark.slow]

PICTURES = 120  # of each shifted set
ORDERS = 20


@pytest.fixture(scope="module")
def embedded() -> EulerLoRA:
    return EulerLoRA.default()


@pytest.fixture(scope="module")
def reference(embedded: EulerLoRA) -> Reference:
    threshold = embedded.config.threshold("det", 1)
    assert threshold is not None
    return Reference.of(threshold)


@pytest.fixture(scope="module")
def test_part(embedded: EulerLoRA, real_data: Path) -> list[LabelledImage]:
    return list(checkpoint_dataset(embedded.config, real_data).parts["test"])


def pixels(image: LabelledImage) -> Tensor:
    return read_image(image.name, image.source) / 255


def events(
    model: EulerLoRA, reference: Reference, images: Sequence[Tensor]
) -> list[dict[str, int | None]]:
    """Returns the events of every picture in mode det. images: (3, height, width) in [0, 1]."""
    result = []
    for image in images:
        prediction = model.predict(image[None], "det")
        scores = prediction.ood_scores
        label = model.classes.index(prediction.labels[0])
        msp, distance = (scores[name].value.item() for name in ("msp", "feature_distance"))
        result.append(reference.events(msp, distance, label))
    return result


def chosen(images: Sequence[LabelledImage]) -> list[Tensor]:
    """Returns the pixels of some of the images."""
    return [pixels(image) for image in random.Random(0).sample(list(images), PICTURES)]


def test_the_test_part_gives_no_alarm(embedded, reference, test_part) -> None:
    pictures = events(embedded, reference, [pixels(image) for image in test_part])
    assert len(pictures) == 2003
    assert replay(pictures, reference, ORDERS).pictures_to_alarm == (None,) * ORDERS


@pytest.mark.parametrize("archive", ["ph2.tar", "pad-ufes-20.tar"])
def test_pictures_of_another_camera_give_an_alarm_within_100(
    embedded, reference, real_data, archive: str
) -> None:
    images = read_ood_set(OodSettings(kind="images", path=archive), real_data).images
    assert alarms_within_100(events(embedded, reference, chosen(images)), reference)


@pytest.mark.parametrize("gains", [(1.0, 0.8, 0.6), (0.6, 0.8, 1.0)])
def test_a_strong_colour_cast_gives_an_alarm_within_100(
    embedded, reference, test_part, gains: tuple[float, ...]
) -> None:
    cast = torch.tensor(gains)[:, None, None]
    images = [image * cast for image in chosen(test_part)]
    assert alarms_within_100(events(embedded, reference, images), reference)


def alarms_within_100(pictures: list[dict[str, int | None]], reference: Reference) -> bool:
    """Returns whether every random order has an alarm within 100 pictures."""
    counts = replay(pictures, reference, ORDERS).pictures_to_alarm
    return all(count is not None and count <= 100 for count in counts)
