"""PEFT gives the deterministic logits of the network."""

import torch

from benchmarks.baselines.engine import build_engine, predict
from benchmarks.baselines.peft import PeftVisionTransformer
from eulerlora.settings import Draw


def test_peft_gives_the_deterministic_logits_of_our_network_with_both_methods(workload) -> None:
    network, images = workload.network, workload.images
    expected = predict(build_engine(network, "float32"), images, [Draw()] * 2, network)
    peft = PeftVisionTransformer(network)
    for actual in (peft.adapter_by_adapter(images), peft.mixed_batch(images)):
        torch.testing.assert_close(actual, torch.cat(expected), rtol=1e-4, atol=1e-4)
