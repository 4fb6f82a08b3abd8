"""benchmarks.baselines.merged: merged weights give the deterministic logits."""

import torch

from benchmarks.baselines.engine import answers, engine
from benchmarks.baselines.merged import merged_logits, merged_members
from eulerlora.settings import Draw


def test_merged_weights_give_the_deterministic_logits_of_our_network(question) -> None:
    network, images = question.network, question.images
    draws = [Draw()] * len(images)
    ours = answers(engine(network, "float32"), images, draws, network.depth, network.settings)
    found = merged_logits(merged_members(network), images)
    torch.testing.assert_close(found, torch.stack(ours), rtol=1e-4, atol=1e-4)
