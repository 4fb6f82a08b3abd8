import torch

from benchmarks.baselines.engine import engine
from benchmarks.baselines.naive import ordinary_members
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from tests.benchmarks.conftest import SAMPLES


def test_the_vmap_ensemble_gives_the_logits_of_our_network(question) -> None:
    expected = engine(question.network, "float32")(
        question.images, question.rows, question.coefficients
    )
    ensemble = vmap_ensemble(ordinary_members(question.network), SAMPLES)
    found = ensemble(question.images, question.own)
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=1e-4, atol=1e-4)
