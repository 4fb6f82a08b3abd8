"""Write a method.

A method decides what a trajectory draws. This one multiplies the coefficients of the rank-one
directions with normal noise, in training and in prediction.
"""

# %% [markdown]
# A method has settings, which become keys of a recipe and are stored in the checkpoint, and a
# class that says which random numbers a row draws and what they do. `NoiseMethod` takes care of
# seeds, of batches, and of pairs of opposite noise for the sampler `balanced`.

# %%
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from eulerlora.methods.gaussian import NoiseMethod
from eulerlora.nn.method import MethodSettings, RowDraws
from eulerlora.sampling.masks import on_stacked_ranks


class JitterSettings(MethodSettings):
    """Coefficients with normal noise."""

    name: Literal["jitter"] = "jitter"
    """The method."""
    scale: Annotated[float, Field(gt=0)] = 0.3
    """Standard deviation of a coefficient, whose mean is 1."""


class JitterMethod(NoiseMethod[JitterSettings]):
    """The method; `depth` blocks with four projections draw a number for each direction."""

    settings_type = JitterSettings
    plain_adapters = True

    def __init__(self, settings, shape):
        super().__init__(settings, shape)
        self.noise = {"jitter": (self.depth, 4, self.adapters.rank)}

    def with_noise(self, coefficients: Tensor, noise: dict[str, Tensor]) -> RowDraws:
        """Returns what rows draw: their coefficients of mode det, and noise on top."""
        added = on_stacked_ranks(self.settings.scale * noise["jitter"], self.adapters.adapters)
        return RowDraws.of_coefficients(coefficients + added)


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
