"""The adapted projection: a frozen projection plus coefficient-weighted rank-one directions.

    y = W0 x + b0 + B (c * (A x))

`down` holds the rows a_k of A, and `up` holds the columns b_k of B as rows: direction k is the pair
(down[k], up[k]). Directions of several adapters are stacked along k; the coefficients c of a row
are zero on the directions of other adapters.
"""

from torch import Tensor
from torch.nn import functional as F


def adapted_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor, coefficients: Tensor
) -> Tensor:
    """Returns the adapted projection of every token of every row.

    inputs: (rows, tokens, in_features). weight: (out_features, in_features), frozen. bias:
    (out_features,), frozen. down: (ranks, in_features). up: (ranks, out_features). coefficients:
    (rows, ranks), shared by all tokens of a row. Returns (rows, tokens, out_features); equals
    `F.linear` if all coefficients are zero.
    """
    weighted = F.linear(inputs, down) * coefficients.unsqueeze(1)  # (rows, tokens, ranks)
    # F.linear of a matrix returns a new tensor, so the in-place addition changes no other tensor.
    output: Tensor = F.linear(inputs.flatten(0, 1), weight, bias)  # (rows * tokens, out_features)
    output.addmm_(weighted.flatten(0, 1).to(output.dtype), up.to(output.dtype))
    return output.view(*inputs.shape[:2], -1)
