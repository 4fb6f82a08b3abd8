"""Floating-point operations of a forward pass (a multiply-add counts as two).

Only matrix products count; norms, softmax and activations are negligible.
"""

from eulerlora.settings import BackboneSettings


def minimum_flops(
    backbone: BackboneSettings, images: int, rows: int, rank: int, classes: int
) -> int:
    """Returns the minimum number of operations for the logits of all rows.

    It is below that of all tokens of all rows for three reasons: in the first block, the rows of an
    image share the inputs of Q, K and V; in the last block, only the class token is needed after K
    and V, unless the features are a mean over patches; and each row uses the `rank` directions and
    the head of one adapter only.
    """
    pixels, patches = 3 * backbone.patch_size**2, backbone.tokens - 1 - backbone.registers
    embedding = 2 * images * patches * pixels * backbone.width
    heads = 2 * rows * backbone.width * classes
    blocks = 0
    for index in range(backbone.layers):
        inputs = images if index == 0 else rows
        pooled = backbone.pooling == "class" and index == backbone.layers - 1
        blocks += _block_flops(backbone, rows, rank, inputs, 1 if pooled else backbone.tokens)
    return embedding + blocks + heads


def _block_flops(
    backbone: BackboneSettings, rows: int, rank: int, inputs: int, queries: int
) -> int:
    """Operations of one block. inputs: distinct inputs of Q, K, V. queries: output tokens."""
    tokens, width = backbone.tokens, backbone.width
    projected = queries + 2 * tokens  # tokens of Q, K and V
    mlp_layers = 3 if backbone.activation == "swiglu" else 2  # the gate is a layer more
    frozen_projections = 2 * (inputs * projected + rows * queries) * width**2
    low_rank = 2 * (inputs * projected + rows * (projected + 2 * queries)) * width * rank
    attention = 2 * rows * queries * tokens * 2 * width
    mlp = 2 * rows * queries * mlp_layers * width * backbone.mlp_width
    return frozen_projections + low_rank + attention + mlp
