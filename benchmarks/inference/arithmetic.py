"""The arithmetic that the answer needs, in floating-point operations (a multiply-add is two).

Only matrix products are counted; norms, softmax and activations are a small rest.
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
        return Arithmetic(*(own + more for own, more in pairs))

    @property
    def total(self) -> int:
        """FLOPs of all parts."""
        return sum(astuple(self))


def needed(
    backbone: BackboneSettings, images: int, rows: int, rank: int, classes: int
) -> Arithmetic:
    """The least that the logits of all rows take by the one formula.

    Next to `every_token` it saves three things: in the first block the frozen Q, K and V and the
    directions see the same inputs in all rows of an image; in the last one Q, O, attention and MLP
    are read at the class token alone; and a row uses its own adapter's `rank` directions and head.
    """
    total = _ends(backbone, images, rows, classes)
    for index in range(backbone.layers):
        sources = images if index == 0 else rows
        read = 1 if index == backbone.layers - 1 else backbone.tokens
        total += _block(backbone, rows, rank, sources, read)
    return total


def every_token(
    backbone: BackboneSettings, images: int, rows: int, ranks: int, classes: int
) -> Arithmetic:
    """What a forward pass without those savings takes: all tokens of all rows in all blocks.

    images: how many are embedded. ranks: stacked directions of all adapters. classes: outputs of
    all heads that each row is given to.
    """
    total = _ends(backbone, images, rows, classes)
    for _ in range(backbone.layers):
        total += _block(backbone, rows, ranks, rows, backbone.tokens)
    return total


def _ends(backbone: BackboneSettings, images: int, rows: int, classes: int) -> Arithmetic:
    pixels = 3 * backbone.patch_size**2
    return Arithmetic(
        patches=2 * images * (backbone.tokens - 1) * pixels * backbone.width,
        heads=2 * rows * backbone.width * classes,
    )


def _block(backbone: BackboneSettings, rows: int, rank: int, sources: int, read: int) -> Arithmetic:
    """One block. sources: distinct inputs of Q, K, V. read: tokens whose output is wanted."""
    tokens, width = backbone.tokens, backbone.width
    inputs = read + 2 * tokens  # tokens that Q, K and V are applied to
    return Arithmetic(
        frozen_projections=2 * (sources * inputs + rows * read) * width**2,
        low_rank=2 * (sources * inputs + rows * (inputs + 2 * read)) * width * rank,
        attention=2 * rows * read * tokens * 2 * width,
        mlp=2 * rows * read * 2 * width * backbone.mlp_width,
    )
