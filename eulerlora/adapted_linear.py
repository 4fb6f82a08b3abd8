"""The one formula: a frozen projection plus its coefficient-weighted rank-one directions.

    y = W0 x + b0 + B (c * (A x))

`down` holds the rows a_k of A and `up` the columns b_k of B as rows, so direction k is the pair
(down[k], up[k]). Directions of several adapters are stacked along k; a row's coefficients c are
zero on those that are not its own.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def adapted_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor, coefficients: Tensor
) -> Tensor:
    """The adapted projection of every token of every row.

    inputs: (rows, tokens, in_features). weight (out_features, in_features) and bias stay frozen.
    down: (ranks, in_features). up: (ranks, out_features). coefficients: (rows, ranks), shared by
    all tokens of a row. Returns (rows, tokens, out_features); with all coefficients zero it is
    `F.linear`.
    """
    directions = F.linear(inputs, down)  # (rows, tokens, ranks)
    return add_low_rank(F.linear(inputs, weight, bias), directions * coefficients.unsqueeze(1), up)


def add_low_rank(frozen: Tensor, weighted: Tensor, up: Tensor) -> Tensor:
    """frozen + weighted @ up in one product; without gradients, in the memory of `frozen`.

    frozen: (rows, tokens, out_features), what the frozen projection gives. weighted: (rows, tokens,
    ranks), the inputs along the directions times their coefficients. up: (ranks, out_features).
    """
    flat = frozen.flatten(0, 1)
    product = (weighted.to(frozen.dtype).flatten(0, 1), up.to(frozen.dtype))
    if torch.is_grad_enabled():
        return torch.addmm(flat, *product).view_as(frozen)
    flat.addmm_(*product)
    return frozen
