"""The methods that a checkpoint or a recipe can name, with their hyperparameters.

`eulerlora.methods` has what each of them computes.
"""

from typing import Annotated, Literal

from pydantic import Field

from eulerlora.validation import Settings

Sides = Literal["both", "input", "output"]


class EulerLoRASettings(Settings):
    """The paper's method, and LoRA or LoRA-Ensemble with min_rank = rank.

    sides: the projections that are sampled: all, only Q, K and V (`input`), or only O (`output`).
    """

    name: Literal["eulerlora"] = "eulerlora"
    sides: Sides = "both"


class RankDropoutSettings(Settings):
    """Dropout of whole directions, with one probability at all projections.

    law: `bernoulli` keeps each direction with probability `kept`; `fixed` keeps a random subset of
    the nearest number of directions, at least one.
    kept: share of the directions that a sample uses; the paper's ranks 10 to 20 of 20 use 0.75.
    """

    name: Literal["rank-dropout"] = "rank-dropout"
    law: Literal["bernoulli", "fixed"] = "bernoulli"
    kept: Annotated[float, Field(gt=0, le=1)] = 0.75


MethodSettings = Annotated[EulerLoRASettings | RankDropoutSettings, Field(discriminator="name")]
EULERLORA = EulerLoRASettings()
