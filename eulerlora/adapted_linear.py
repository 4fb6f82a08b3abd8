"""The one formula: a frozen projection plus its coefficient-weighted rank-one directions.

    y = W0 x + b0 + B (c * (A x))

`down` holds the rows a_k of A and `up` the columns b_k of B as rows, so direction k is the pair
(down[k], up[k]). Directions of several adapters are stacked along k; a row's coefficients c are
zero on those that are not its own.
"""

from torch import Tensor
from torch.nn import functional as F


def low_rank_update(inputs: Tensor, down: Tensor, up: Tensor, coefficients: Tensor) -> Tensor:
    """B (c * (A x)) for every token of every row.

    inputs: (rows, tokens, in_features). down: (ranks, in_features). up: (ranks, out_features).
    coefficients: (rows, ranks), shared by all tokens of a row.
    Returns (rows, tokens, out_features).
    """
    directions = F.linear(inputs, down)  # (rows, tokens, ranks)
    return (directions * coefficients.unsqueeze(1)) @ up


def adapted_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor, coefficients: Tensor
) -> Tensor:
    """The adapted projection; weight (out_features, in_features) and bias stay frozen.

    Other shapes as in `low_rank_update`. With all coefficients zero it is `F.linear`.
    """
    return F.linear(inputs, weight, bias) + low_rank_update(inputs, down, up, coefficients)
