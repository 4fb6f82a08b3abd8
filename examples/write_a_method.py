"""Write a method.

A method decides what a trajectory draws. This one multiplies the coefficients of the rank-one
directions with normal noise, in training and in prediction.
"""

# %% [markdown]
# A method has settings, which become keys of a recipe and are stored in the checkpoint, and a
# class that says which random numbers a row draws and what they do. All numbers come from the
# generator that it gets, which is seeded for one image.

# %%
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from eulerlora.nn.method import Method, MethodSettings, RowDraws


class JitterSettings(MethodSettings):
    """Coefficients with normal noise."""

    name: Literal["jitter"] = "jitter"
    """The method."""
    scale: Annotated[float, Field(gt=0)] = 0.3
    """Standard deviation of a coefficient, whose mean is 1."""


class JitterMethod(Method[JitterSettings]):
    """The method; `depth` blocks with four projections draw a number for each direction."""

    settings_type = JitterSettings

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        """Draws independent samples of each adapter."""
        return self.draws(self.noise(samples, generator))

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        """Draws pairs of opposite noise, for the sampler `balanced`; leaves out the first ones."""
        pairs = [self.noise(1, generator) for _ in range(0, first + samples, 2)]
        noise = torch.cat([sign * pair for pair in pairs for sign in (1, -1)], dim=1)
        return self.draws(noise[:, first : first + samples])

    def noise(self, samples: int, generator: Generator) -> Tensor:
        """(adapters, samples, blocks, 4, rank)."""
        shape = (self.adapters.adapters, samples, self.depth, 4, self.adapters.rank)
        return torch.randn(shape, generator=generator)

    def draws(self, noise: Tensor) -> RowDraws:
        """Returns what the rows draw, adapter by adapter: coefficients with mean 1."""
        return RowDraws.of_coefficients(1 + self.settings.scale * noise.flatten(0, 1))


# %% [markdown]
# **Install it.** A distribution of your own names the class; put the code above into
# `write_a_method.py` beside this `pyproject.toml`, and run `pip install --editable .`:
#
#     [project]
#     name = "jitter"
#     version = "1.0"
#
#     [tool.setuptools]
#     py-modules = ["write_a_method"]
#
#     [project.entry-points."eulerlora.methods"]
#     jitter = "write_a_method:JitterMethod"
#
# **Use it.** Every command knows it now. The recipe says `method`, everything else is the same:
#
#     eulerlora train imagefolder --data DIR --out run/ --set method.name=jitter \
#         --set method.scale=0.2
#     eulerlora evaluate run/ --data DIR --out report/
#     eulerlora serve run/
#
# Mode `det` draws nothing. An answer stays reproducible, because all draws come from the generator
# of its image. Next: [methods](../docs/explanation/methods.md) lists what else a method may change,
# and 13 examples with their sources.
