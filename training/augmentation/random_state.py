"""The seeding of torch's global generator, for code that takes no generator."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

CPU = torch.device("cpu")  # torchvision's transforms draw there, whatever the pixels' device


@contextmanager
def seeded(device: torch.device, *entropy: int) -> Iterator[None]:
    """Seeds the device's global generator with `entropy` within the block, then restores it.

    For torchvision's transforms and modules, which take no generator.
    """
    generator = _global_generator(device)
    state = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(state)


def _global_generator(device: torch.device) -> torch.Generator:
    """device: a CUDA device must have an index, as a tensor's device has."""
    cuda = device.type == "cuda"
    return torch.cuda.default_generators[device.index] if cuda else torch.default_generator
