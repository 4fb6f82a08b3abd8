"""Merged weights give the deterministic logits."""

import torch

from benchmarks.baselines.engine import build_engine, predict
from benchmarks.baselines.merged import merged_logits, merged_members
from eulerlora.settings import Draw


def test_merged_weights_give_the_deterministic_logits_of_our_network(workload) -> None:
    network, images = workload.network, workload.images
    draws = [Draw()] * len(images)
    expected = predict(build_engine(network, "float32"), images, draws, network)
    actual = merged_logits(merged_members(network), images)
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-4, atol=1e-4)
