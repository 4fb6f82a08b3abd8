import torch

from benchmarks.baselines.engine import answers, engine
from benchmarks.baselines.peft import PeftVisionTransformer
from eulerlora.settings import Draw


def test_peft_gives_the_deterministic_logits_of_our_network_both_ways(question) -> None:
    network, images = question.network, question.images
    found = answers(engine(network, "float32"), images, [Draw()] * 2, 2, network.settings)
    peft = PeftVisionTransformer(network)
    for theirs in (peft.one_after_another(images), peft.mixed_batch(images)):
        torch.testing.assert_close(theirs, torch.cat(found), rtol=1e-4, atol=1e-4)
