"""The study of refitted heads: its metrics, and the order of its measurements."""

from itertools import takewhile

import numpy as np
import torch

from eulerlora.nn.method import AdapterHeads
from eulerlora.scores.trajectories import Trajectories
from eulerlora_lab.site_heads import (
    ARMS,
    LESIONS,
    METRICS,
    Archive,
    Study,
    results,
    specificity,
    summary,
)


def test_specificity_is_that_of_the_highest_threshold_that_finds_the_positives() -> None:
    random = np.random.default_rng(0)
    scores, positive = random.random(200).round(2), random.random(200) < 0.2
    found = [t for t in np.unique(scores) if (scores[positive] >= t).mean() >= 0.95]
    assert specificity(scores, positive) == (scores[~positive] < max(found)).mean()


def test_an_arm_is_measured_on_the_same_lesions_as_the_shipped_heads() -> None:
    random = torch.Generator().manual_seed(0)
    heads = AdapterHeads(4, 3, 1)
    heads.initialise(random)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 1, 1, 4, generator=random) + torch.eye(3, 4)[labels, None, None]
    features /= features.norm(dim=-1, keepdim=True)
    logits = heads(features[:, 0, 0], torch.zeros(60, dtype=torch.int64)).detach().double()
    views = torch.zeros(60, 1, 1, dtype=torch.int64)
    outputs = Trajectories.of(logits[:, None, None], features, views)
    archive = Archive(
        {"det": outputs, "stoch": outputs}, labels.numpy(), np.arange(60), np.arange(60)
    )
    study = Study(heads, {"det": 1.0, "stoch": 1.0}, [0], 1)
    rows = list(takewhile(lambda row: row["split"] == 0, results(study, archive)))
    assert {row["lesions"] for row in rows} == {LESIONS[0]}  # a half has 30
    assert not any(row["changed"] for row in rows if row["arm"] != "refitted")
    first, *_ = entries = summary(rows)
    assert len(entries) == 2 * len(ARMS)
    for entry in entries:
        for metric in METRICS:
            gain = entry[metric][0] - first[metric][0]
            assert abs(entry[f"gain, {metric}"][0] - gain) < 2e-4  # both modes are equal here
