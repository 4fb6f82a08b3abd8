"""The embedded checkpoint: its files, its card and its predictions."""

import csv
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from service.lifecycle.loading import CheckpointSource
from tests.service.conftest import app_of

MAX_BYTES = 55_000_000
IMAGES = 17


@pytest.fixture(scope="module")
def embedded() -> EulerLoRA:
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu")


@pytest.fixture(scope="module")
def config(embedded: EulerLoRA) -> CheckpointConfig:
    return embedded.config


@pytest.fixture(scope="module")
def client(embedded: EulerLoRA) -> Iterator[TestClient]:
    with TestClient(app_of(embedded)) as client:
        yield client


@pytest.fixture(scope="module")
def lesions(real_data: Path) -> list[tuple[str, bytes]]:
    """Names and files of the first images of HAM10000."""
    return first_images(next(real_data.glob("ham10000*.tar.*")))


def first_images(archive: Path) -> list[tuple[str, bytes]]:
    """Names and contents of the first `IMAGES` files of an archive."""
    images = []
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member)
            if content is not None:
                images.append((Path(member.name).stem, content.read()))
            if len(images) == IMAGES:
                return images
    raise AssertionError(f"expected {IMAGES} images, got {len(images)}")


def test_the_checkpoint_is_small_and_complete(config: CheckpointConfig) -> None:
    assert sum(path.stat().st_size for path in DEFAULT_CHECKPOINT.iterdir()) <= MAX_BYTES
    assert (DEFAULT_CHECKPOINT / "backbone.safetensors").exists()
    assert {name.name for name in config.classes} == {
        "akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"
    }  # fmt: skip


def test_the_provenance_names_the_recipe_and_a_clean_commit(
    config: CheckpointConfig,
) -> None:
    recipe = config.provenance["recipe"]
    assert recipe["data"]["split"] == "lesion-best-epoch"
    assert (recipe["adapters"]["adapters"], recipe["adapters"]["rank"]) == (4, 20)
    assert not config.provenance["commit"].endswith("-dirty")
    assert not config.backbone.provenance["commit"].endswith("-dirty")


def test_every_sample_count_has_a_threshold_from_held_out_lesions(
    config: CheckpointConfig,
) -> None:
    assert config.sampler == "balanced"
    assert config.threshold(config.options()) is not None
    for samples in (1, 2, 4, 8, "auto"):
        assert config.threshold(config.options("stoch", samples)) is not None
    for threshold in config.thresholds:
        assert threshold.kept >= 0.95
        assert "calibration part" in threshold.data


@pytest.mark.data
def test_most_images_get_the_right_label(
    client: TestClient, real_data: Path, lesions: list[tuple[str, bytes]]
) -> None:
    with (real_data / "HAM10000_metadata.csv").open(newline="") as file:
        truth = {row["image_id"]: row["dx"] for row in csv.DictReader(file)}
    labels = [client.post("/predict", files={"file": lesion}).json()["label"] for lesion in lesions]
    correct = [label == truth[name] for label, (name, _) in zip(labels, lesions, strict=True)]
    assert sum(correct) / len(correct) > 0.5


@pytest.mark.data
def test_most_other_images_and_few_lesions_are_unfamiliar(
    client: TestClient, real_data: Path, lesions: list[tuple[str, bytes]]
) -> None:
    def flagged(images: list[tuple[str, bytes]]) -> int:
        query = {"mode": "stoch", "samples": "4"}
        responses = [client.post("/predict", params=query, files={"file": file}) for file in images]
        return sum(response.json()["unfamiliar"] for response in responses)

    others = first_images(real_data / "cifar10-jpeg.tar.xz")
    assert flagged(others) > IMAGES / 2 > 4 * flagged(lesions)


def test_the_served_licence_is_that_of_the_data() -> None:
    checked = CheckpointSource(DEFAULT_CHECKPOINT).load(())
    assert checked.served.licence == "cc-by-nc-4.0"
