"""The code for MAPIE in docs/compared-with.md runs on answers; that for other libraries, which need
packages that the tests do not install, was run by hand (the page says with which versions)."""

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
