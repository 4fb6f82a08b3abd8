"""The baseline LoRA-Ensemble against the network."""

import torch

from benchmarks.baselines.lora_ensemble import LoRAEnsemble
from benchmarks.baselines.naive import ordinary_members
from benchmarks.inference.correctness import plain_logits
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw


def test_the_members_give_the_deterministic_logits_of_the_adapters(workload) -> None:
    network, images = workload.network, workload.images
    rows = Rows.of([1] * len(images), network.settings.adapters)
    expected = plain_logits(workload, rows, network.draw_rows([Draw()] * len(images)))
    actual = LoRAEnsemble(ordinary_members(network))(images)
    assert actual.shape == (len(images), network.settings.adapters, network.heads.bias.shape[1])
    torch.testing.assert_close(actual.flatten(0, 1), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(actual[:, 0], actual[:, 1], atol=1e-3)
