"""The study of refitted heads: its metrics, and the order of its measurements."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Generator, Tensor

from eulerlora.nn.method import AdapterHeads
from eulerlora.scores.trajectories import Trajectories
from eulerlora_lab import site_heads
from tests.conftest import DET, STOCH

METRICS = ("malignant AUROC", "melanoma AUROC", "specificity", "NLL")
ARMS = ("thresholds only", "refitted", "site fit")
LABELS = torch.arange(60) % 3


@pytest.fixture(scope="module")
def heads() -> AdapterHeads:
    heads = AdapterHeads(4, 3, 1)
    heads.initialise(Generator().manual_seed(0))
    return heads


@pytest.fixture(scope="module")
def logits(heads: AdapterHeads) -> tuple[Tensor, Tensor]:
    """Features (60, 4) of the images, and their logits (60, 3)."""
    random = Generator().manual_seed(1)
    features = torch.randn(60, 4, generator=random) + torch.eye(3, 4)[LABELS]
    features /= features.norm(dim=-1, keepdim=True)
    of_heads = heads(features, torch.zeros(60, dtype=torch.int64)).detach().double()
    return features, of_heads


@pytest.fixture(scope="module")
def summaries(
    heads: AdapterHeads,
    logits: tuple[Tensor, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[dict[str, Any]]:
    """The summaries of one split of an archive with a lesion for each image, in both modes."""
    tmp_path = tmp_path_factory.mktemp("site heads")
    features, of_heads = logits
    views = torch.zeros(60, 1, 1, dtype=torch.int64)
    outputs = vars(Trajectories.of(of_heads[:, None, None], features[:, None, None], views))
    lesions = [f"{index:02}" for index in range(60)]
    stored = {"labels": LABELS.tolist(), "lesions": lesions}
    for name in ("ph2", "pad-ufes-20"):
        modes = {"det": outputs, "stoch": outputs}
        torch.save(stored | {"modes": modes}, tmp_path / f"{name}.pt")
    options = {"det": DET, "stoch": STOCH}
    config = SimpleNamespace(
        class_names=["a", "mel", "b"],
        options=options.__getitem__,
        target=SimpleNamespace(classes=["a"]),
        temperatures={"det": 1.0, "stoch": 1.0},
    )
    checkpoint = SimpleNamespace(config=config, network=SimpleNamespace(heads=heads))
    folders = [str(part) for name in ("--data", "--cache", "--out") for part in (name, tmp_path)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(site_heads, "load_checkpoint", lambda _: checkpoint)
        patched.setattr("sys.argv", ["site_heads", *folders, "--splits", "1"])
        site_heads.main()
    assert b"<svg" in (tmp_path / "site-heads.svg").read_bytes()
    written = json.loads((tmp_path / "site-heads.json").read_text())
    assert written["ph2"] == written["pad-ufes-20"]
    entries: list[dict[str, Any]] = written["ph2"]
    return entries


def test_metrics_are_those_of_the_half_that_is_not_local(
    summaries: list[dict[str, Any]], logits: tuple[Tensor, Tensor]
) -> None:
    order = np.random.default_rng(0).permutation(60)
    test = ~np.isin(np.arange(60), order[:30])
    probabilities = logits[1].softmax(dim=-1).numpy()[test]
    labels = LABELS.numpy()[test]
    malignant, score = labels == 0, probabilities[:, 0]
    found = [t for t in np.unique(score) if (score[malignant] >= t).mean() >= 0.95]
    expected = {
        "malignant AUROC": roc_auc_score(malignant, score),
        "melanoma AUROC": roc_auc_score(labels == 1, probabilities[:, 1]),
        "specificity": (score[~malignant] < max(found)).mean(),
        "NLL": -np.log(probabilities[np.arange(30), labels]).mean(),
    }
    first = summaries[0]
    assert {name: first[name][0] for name in METRICS} == pytest.approx(expected, abs=1e-4)


def test_an_arm_is_measured_on_the_same_lesions_as_the_shipped_heads(
    summaries: list[dict[str, Any]],
) -> None:
    assert [entry["arm"] for entry in summaries[::2]] == list(ARMS)
    assert [entry["options"] for entry in summaries[:2]] == [asdict(DET), asdict(STOCH)]
    assert {entry["lesions"] for entry in summaries} == {20}  # a half has 30
    assert not any(entry["changed"] for entry in summaries if entry["arm"] != "refitted")
    first = summaries[0]
    for entry in summaries:
        for metric in METRICS:
            gain = entry[metric][0] - first[metric][0]
            assert abs(entry[f"gain, {metric}"][0] - gain) < 2e-4  # both modes are equal here
