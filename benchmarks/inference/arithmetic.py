"""Floating-point operations of a forward pass (a multiply-add counts as two).

Only matrix products count; norms, softmax and activations are negligible.
"""

from dataclasses import astuple, dataclass

from eulerlora.settings import BackboneSettings


@dataclass(frozen=True)
class Arithmetic:
    """FLOPs of one forward pass by part."""

    patches: int = 0
    frozen_projections: int = 0
    low_rank: int = 0
    attention: int = 0
    mlp: int = 0
    heads: int = 0

    def __add__(self, other: "Arithmetic") -> "Arithmetic":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Arithmetic(*(left + right for left, right in pairs))

    @property
    def total(self) -> int:
        """Sum over all parts."""
        return sum(astuple(self))


def minimum(
    backbone: BackboneSettings, images: int, rows: int, rank: int, classes: int
) -> Arithmetic:
    """Returns the minimum number of operations for the logits of all rows.

    It is below that of `all_tokens` for three reasons: in the first block, the rows of an image
    share the inputs of Q, K and V; in the last block, only the class token is needed after K and
    V, unless the features are a mean over patches; and each row uses the `rank` directions and the
    head of one adapter only.
    """
    total = _embedding_and_heads(backbone, images, rows, classes)
    for index in range(backbone.layers):
        inputs = images if index == 0 else rows
        pooled = backbone.pooling == "class" and index == backbone.layers - 1
        queries = 1 if pooled else backbone.tokens
        total += _block(backbone, rows, rank, inputs, queries)
    return total


def all_tokens(
    backbone: BackboneSettings, images: int, rows: int, ranks: int, classes: int
) -> Arithmetic:
    """Returns the operations of a forward pass over all tokens of all rows in all blocks.

    images: number of embedded images. ranks: stacked directions of all adapters. classes: outputs
    of all heads together.
    """
    total = _embedding_and_heads(backbone, images, rows, classes)
    for _ in range(backbone.layers):
        total += _block(backbone, rows, ranks, rows, backbone.tokens)
    return total


def _embedding_and_heads(
    backbone: BackboneSettings, images: int, rows: int, classes: int
) -> Arithmetic:
    pixels, patches = 3 * backbone.patch_size**2, backbone.tokens - 1 - backbone.registers
    return Arithmetic(
        patches=2 * images * patches * pixels * backbone.width,
        heads=2 * rows * backbone.width * classes,
    )


def _block(
    backbone: BackboneSettings, rows: int, rank: int, inputs: int, queries: int
) -> Arithmetic:
    """Operations of one block. inputs: distinct inputs of Q, K, V. queries: output tokens."""
    tokens, width = backbone.tokens, backbone.width
    projected = queries + 2 * tokens  # tokens of Q, K and V
    mlp_layers = 3 if backbone.activation == "swiglu" else 2  # the gate is a layer more
    return Arithmetic(
        frozen_projections=2 * (inputs * projected + rows * queries) * width**2,
        low_rank=2 * (inputs * projected + rows * (projected + 2 * queries)) * width * rank,
        attention=2 * rows * queries * tokens * 2 * width,
        mlp=2 * rows * queries * mlp_layers * width * backbone.mlp_width,
    )
