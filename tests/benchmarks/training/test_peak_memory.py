import torch

from benchmarks.measurement.sizes import SMALL_NETWORK
from benchmarks.training.peak_memory import peak_bytes
from eulerlora.settings import BackboneSettings


def test_a_step_needs_at_least_the_activations_that_its_backward_pass_reads() -> None:
    """The inputs of every block's MLP activation alone: images x trajectories x tokens x width."""
    backbone = BackboneSettings(
        image_size=64, patch_size=8, layers=4, heads=2, width=64, mlp_width=512
    )
    sizes = SMALL_NETWORK.model_copy(update={"backbone": backbone})
    images = 4
    rows = images * sizes.trajectories
    least = 4 * rows * backbone.tokens * backbone.mlp_width * backbone.layers
    found = peak_bytes("ours", sizes, images, torch.device("cpu"))
    assert least < found < 40 * least
