"""The code of docs/compared-with.md runs on answers, where the library is installed."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from eulerlora import summarise
from tests.markdown import code_blocks

PAGE = Path(__file__).parents[1] / "docs" / "compared-with.md"


def answered(images: int, seed: int) -> tuple[SimpleNamespace, Tensor]:
    """Returns answers with eight trajectories of three classes, and their labels."""
    random = Generator().manual_seed(seed)
    labels = torch.randint(3, (images,), generator=random)
    logits = F.one_hot(labels, 3) + torch.randn(images, 3, generator=random)
    noise = 0.5 * torch.randn(images, 8, 3, generator=random)
    trajectories = (logits[:, None] + noise).softmax(dim=-1)
    return SimpleNamespace(trajectories=trajectories, **vars(summarise(trajectories))), labels


def run_example(library: str) -> tuple[dict[str, Any], Tensor]:
    """Returns the names of the example of a library, and the labels of `answer`."""
    pytest.importorskip(library)
    (code,) = (block.code for block in code_blocks(PAGE.read_text()) if library in block.code)
    calibration, labels = answered(400, seed=1)
    answer, expected = answered(1000, seed=2)
    names = {"answer": answer, "calibration": calibration, "labels": labels}
    exec(compile(code, PAGE.name, "exec"), names)
    return names, expected


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mapie_makes_sets_of_our_probabilities() -> None:
    names, labels = run_example("mapie")
    included = torch.from_numpy(names["sets"])[:, :, 0]
    covered = included[torch.arange(len(labels)), labels].double().mean()
    assert 0.9 - 3 * math.sqrt(0.09 / 400) < covered
    assert 1 < included.sum(dim=1).double().mean() < 3


def test_probly_measures_our_trajectories() -> None:
    names, _ = run_example("probly")
    answer = names["answer"]
    information = torch.from_numpy(names["by_entropy"].epistemic).double()
    torch.testing.assert_close(information, answer.mutual_information, rtol=0, atol=1e-5)
    by_msp = answer.trajectories.amax(dim=-1).double().mean(dim=1) - answer.msp
    disagreement = torch.from_numpy(names["by_zero_one_loss"].epistemic).double()
    torch.testing.assert_close(disagreement, by_msp, rtol=0, atol=1e-5)


def test_metrics_of_torch_uncertainty_take_our_answers() -> None:
    names, _ = run_example("torch_uncertainty")
    information = names["disagreement"].compute().double()
    torch.testing.assert_close(information, names["answer"].mutual_information, rtol=0, atol=1e-5)
