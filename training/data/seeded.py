"""Torch's own generators, seeded for a block of code that takes no generator.

Torchvision's transforms and modules draw from them. Each block has a seed of its own and leaves
the generator as it was, so that what is drawn is a function of that seed alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(device: torch.device, *entropy: int) -> Iterator[None]:
    """Within the block the device's generator begins at a seed that `entropy` determines."""
    generator = _generator_of(device)
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(before)


def _generator_of(device: torch.device) -> torch.Generator:
    """device: with an index where it is a GPU, as a tensor's device has."""
    cuda = device.type == "cuda"
    return torch.cuda.default_generators[device.index] if cuda else torch.default_generator
