"""The vmap ensemble gives the logits of the network."""

import torch

from benchmarks.baselines.engine import build_engine
from benchmarks.baselines.naive import ordinary_members
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from tests.benchmarks.conftest import SAMPLES


def test_the_vmap_ensemble_gives_the_logits_of_our_network(workload) -> None:
    expected = build_engine(workload.network, "float32")(
        workload.images, workload.rows, workload.draws
    )
    ensemble = vmap_ensemble(ordinary_members(workload.network), SAMPLES)
    actual = ensemble(workload.images, workload.unstacked)
    torch.testing.assert_close(actual.flatten(0, 1), expected, rtol=1e-4, atol=1e-4)
