"""A tiny checkpoint with feature statistics, and local pictures of its classes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.config import FeatureConfig
from eulerlora.checkpoint.files import save_checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.scores.ood_scores import fit_feature_statistics
from eulerlora_clinic.policy.policy import default_policy_text
from tests.conftest import CLASSES, THRESHOLDS, config_of, random_network

WIDTH = 3 * 16


@pytest.fixture(scope="session")
def site_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the packaged policy for the classes of the tiny checkpoint, and a comment."""
    path = tmp_path_factory.mktemp("policy") / "own.toml"
    rules = default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]')
    rules = rules.replace('rule = "sensitivity = 0.95"\n', "")
    path.write_text(f"# ours\n{rules}")
    return path


@pytest.fixture
def policy(site_policy: Path, tmp_path: Path) -> Path:
    """A copy of `site_policy` that may be changed."""
    return Path(shutil.copy(site_policy, tmp_path))


@pytest.fixture(scope="session")
def site_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With feature statistics of random features, one mean for each class."""
    folder = tmp_path_factory.mktemp("site") / "source"
    network = random_network()
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % len(CLASSES)
    features = torch.randn(300, WIDTH, generator=generator)
    statistics = fit_feature_statistics(features, labels, len(CLASSES))
    recipe = {"data": {"kind": "imagefolder", "path": "images"}}
    config = config_of(
        network, thresholds=THRESHOLDS, provenance={"recipe": recipe, "seed": 0}, features=None
    )
    card = "# tiny\n\nA tiny checkpoint.\n\n## Classes\n\n- three\n"
    described = FeatureConfig(
        sha256=tensors_sha256(statistics.tensors),
        shrinkage=0.1,
        components=len(CLASSES),
        images=300,
        data="synthetic",
    )
    config = config.model_copy(update={"features": described})
    save_checkpoint(folder, network, config, card, statistics=statistics)
    return folder


@pytest.fixture(scope="session")
def local_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With labels.csv, and random pictures of 12 bkl, 20 mel and 28 nevus lesions."""
    folder = tmp_path_factory.mktemp("site") / "clinic"
    folder.mkdir()
    noise = np.random.default_rng(0)
    rows = ["path,label,lesion"]
    for label, count in (("bkl", 12), ("mel", 20), ("nevus", 28)):
        for lesion in range(count):
            for picture in range(1 + lesion % 2):
                name = f"{label}-{lesion}-{picture}.png"
                pixels = noise.integers(0, 256, (4, 4, 3)).astype(np.uint8)
                image = Image.fromarray(pixels).resize((48, 36), Image.Resampling.NEAREST)
                image.save(folder / name)
                rows.append(f"{name},{label},{label}-{lesion}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder
