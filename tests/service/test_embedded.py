"""eulerlora/default: the embedded checkpoint, and what its card promises."""

import csv
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint import BACKBONE, CARD, DEFAULT_CHECKPOINT
from eulerlora.config import CheckpointConfig
from service.app import create_service
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

MAX_BYTES = 25_000_000
IMAGES = 17


@pytest.fixture(scope="module")
def config() -> CheckpointConfig:
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu").config


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    models = ServedModels([ServedModel.of(EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu"))])
    with TestClient(create_service(models, ServiceSettings(), Lifecycle()).application) as client:
        yield client


@pytest.fixture(scope="module")
def lesions(real_data: Path) -> list[tuple[str, bytes]]:
    """Names and encoded bytes of the first images of HAM10000."""
    return first_images(next(real_data.glob("ham10000*.tar.*")))


def first_images(archive: Path) -> list[tuple[str, bytes]]:
    """Names and bytes of the first `IMAGES` files of an archive."""
    found = []
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member)
            if content is not None:
                found.append((Path(member.name).stem, content.read()))
            if len(found) == IMAGES:
                return found
    raise AssertionError(f"wanted {IMAGES} images, found {len(found)}")


def test_it_is_small_and_whole(config: CheckpointConfig) -> None:
    assert sum(path.stat().st_size for path in DEFAULT_CHECKPOINT.iterdir()) <= MAX_BYTES
    assert (DEFAULT_CHECKPOINT / BACKBONE).exists()
    assert {each.name for each in config.classes} == {
        "akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"
    }  # fmt: skip


def test_it_was_trained_by_the_project_s_recipe_on_the_lesion_split(
    config: CheckpointConfig,
) -> None:
    recipe = config.provenance["recipe"]
    assert recipe["data"]["split"] == "lesion"
    assert (recipe["adapters"]["adapters"], recipe["adapters"]["rank"]) == (2, 20)
    assert not config.provenance["commit"].endswith("-dirty")
    assert not config.backbone.provenance["commit"].endswith("-dirty")


def test_every_offered_sample_count_is_calibrated_on_held_out_lesions(
    config: CheckpointConfig,
) -> None:
    assert config.sampler == "balanced"
    for mode, samples in (("det", 1), *(("stoch", count) for count in (1, 2, 4, 8, 16, "auto"))):
        assert config.threshold(mode, samples) is not None  # type: ignore[arg-type]
    for each in config.thresholds:
        assert each.kept >= 0.95
        assert "calibration part" in each.data


def test_its_card_states_figures_limits_and_licence() -> None:
    card = (DEFAULT_CHECKPOINT / CARD).read_text()
    for words in (
        "not a medical device",
        "CC BY-NC 4.0",
        "macro-AUROC",
        "By class",
        "Tiny ImageNet",
    ):
        assert words in card


@pytest.mark.data
def test_it_knows_most_of_the_images(
    client: TestClient, real_data: Path, lesions: list[tuple[str, bytes]]
) -> None:
    with (real_data / "HAM10000_metadata.csv").open(newline="") as file:
        truth = {row["image_id"]: row["dx"] for row in csv.DictReader(file)}
    labels = [client.post("/predict", files={"file": lesion}).json()["label"] for lesion in lesions]
    right = [label == truth[name] for label, (name, _) in zip(labels, lesions, strict=True)]
    assert sum(right) / len(right) > 0.5


@pytest.mark.data
def test_it_flags_most_pictures_of_something_else_and_few_lesions(
    client: TestClient, real_data: Path, lesions: list[tuple[str, bytes]]
) -> None:
    def flagged(images: list[tuple[str, bytes]]) -> int:
        asked = {"mode": "stoch", "samples": "4"}
        answers = [client.post("/predict", params=asked, files={"file": each}) for each in images]
        return sum(answer.json()["ood"] for answer in answers)

    others = first_images(real_data / "cifar10-jpeg.tar.xz")
    assert flagged(others) > IMAGES / 2 > 4 * flagged(lesions)


@pytest.mark.data
def test_an_answer_does_not_depend_on_what_is_asked_at_the_same_time(
    client: TestClient, lesions: list[tuple[str, bytes]]
) -> None:
    def ask(index: int) -> dict[str, float]:
        samples = index % 4
        query = {"mode": "stoch", "samples": samples} if samples else {"mode": "det"}
        answer = client.post("/predict", params=query, files={"file": lesions[index]})
        probabilities: dict[str, float] = answer.json()["probabilities"]
        return probabilities

    alone = [ask(index) for index in range(IMAGES)]
    with ThreadPoolExecutor(IMAGES) as threads:
        together = list(threads.map(ask, range(IMAGES)))
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
