"""The embedded model's shift monitor on real pictures: the model's test lesions, and other ones."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora_clinic.service.shift_monitor import ShiftMonitors
from eulerlora_contract.answers import OodScore, OodScores, Prediction
from training.data.datasets import checkpoint_dataset, read_ood_set
from training.data.images import LabelledImage
from training.data.registry import OodSettings

pytestmark = [pytest.mark.data, pytest.mark.slow]

TEST_PICTURES, SHIFTED_PICTURES, CAST_PICTURES = 600, 200, 480
ORDERS = 20
BATCH = 50


@pytest.fixture(scope="module")
def embedded() -> EulerLoRA:
    return EulerLoRA.default()


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
def answers(embedded: EulerLoRA) -> Callable[[Iterable[Tensor]], list[Prediction]]:
    """The answer for each picture in mode det; pictures of a batch must have equal size."""

    def of_batch(batch: Tensor) -> Iterator[Prediction]:
        prediction = embedded.predict(batch, "det")
        assert prediction.ood_scores is not None
        for index, label in enumerate(prediction.labels):
            msp, distance = (
                float(prediction.ood_scores[name].value[index])
                for name in ("msp", "feature_distance")
            )
            scores = [
                OodScore(value=value, threshold=0, flagged=False) for value in (msp, distance)
            ]
            yield Prediction.model_validate(
                {
                    "request_id": "r", "model": embedded.config.name, "mode": "det", "samples": 1,
                    "revision": embedded.revision, "trajectories": len(embedded.classes),
                    "seed": 0, "label": label, "probabilities": {label: 1.0}, "entropy": 0,
                    "expected_entropy": 0, "mutual_information": 0, "msp": msp, "ood": False,
                    "ood_threshold": 0, "warnings": (),
                    "ood_scores": OodScores(
                        msp=scores[0], energy=scores[0], feature_distance=scores[1]
                    ),
                }
            )  # fmt: skip

    return lambda batches: [answer for batch in batches for answer in of_batch(batch)]


def alarms(pictures: Sequence[Prediction], embedded: EulerLoRA) -> list[bool]:
    """Returns for random orders of the pictures whether there is an alarm."""
    name = embedded.config.name

    def alarm(seed: int) -> bool:
        monitors = ShiftMonitors(lambda: {name: embedded})
        for answer in random.Random(seed).sample(pictures, len(pictures)):
            monitors.record(answer)
        state = monitors.states()[name]
        assert state.pictures == len(pictures)
        return state.alarm

    return [alarm(seed) for seed in range(ORDERS)]


def test_the_test_lesions_give_no_alarm(embedded, test_lesions, answers) -> None:
    pictures = answers(torch.stack(test_lesions).split(BATCH))
    assert len(pictures) == TEST_PICTURES
    assert not any(alarms(pictures, embedded))


@pytest.mark.parametrize("archive", ["ph2.tar", "pad-ufes-20.tar"])
def test_pictures_of_another_camera_give_an_alarm(embedded, answers, real_data, archive) -> None:
    images = read_ood_set(OodSettings(kind="images", path=archive), real_data).images
    pictures = answers(picture[None] for picture in pixels(images, SHIFTED_PICTURES))
    assert all(alarms(pictures, embedded))


@pytest.mark.parametrize("gains", [(1.0, 0.8, 0.6), (0.6, 0.8, 1.0)], ids=["warm", "cold"])
def test_a_colour_cast_gives_an_alarm(embedded, answers, test_lesions, gains) -> None:
    cast = torch.tensor(gains)[:, None, None]
    shifted = torch.stack(test_lesions[:CAST_PICTURES]) * cast
    assert all(alarms(answers(shifted.split(BATCH)), embedded))
