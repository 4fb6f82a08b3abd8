"""Peak memory of training steps."""

import torch

from benchmarks.measurement.sizes import SMALL_NETWORK
from benchmarks.training.peak_memory import peak_bytes
from eulerlora.settings import BackboneSettings


def test_a_step_needs_at_least_the_activations_of_its_backward_pass() -> None:
    """The lower bound is the size of the inputs of the MLP activations of all blocks."""
    backbone = BackboneSettings(
        image_size=64, patch_size=8, layers=4, heads=2, width=64, mlp_width=512
    )
    sizes = SMALL_NETWORK.model_copy(update={"backbone": backbone})
    images = 4
    rows = images * sizes.trajectories
    minimum = 4 * rows * backbone.tokens * backbone.mlp_width * backbone.layers
    actual = peak_bytes("one-batch", sizes, images, torch.device("cpu"))
    assert minimum < actual < 40 * minimum
