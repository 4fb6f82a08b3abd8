"""The quality of an image in sRGB: size, brightness, clipping and sharpness.

Policies have thresholds for these measures, so that their definitions are a contract: of the luma
(ITU-R BT.601) in sRGB at 128 pixels, sharpness as the variance of the Laplacian.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, cast

from PIL import Image, ImageMath

from eulerlora_contract.answers import ImageQuality

__all__ = ["has_frame", "measure_quality", "working_luma"]

_WORKING_SIDE_PX = 128
"""Longer side at which brightness, clipping and sharpness are measured."""

_MAX_FRAME, _MAX_FRAME_RANGE = 32, 8
_MIN_FRAME_SHARE = 0.02  # of a side, at both of its ends
_MAX_FRAME_SHARE = 0.5
_MAX_BLACK = 5
_MIN_WHITE = 250


def measure_quality(image: Image.Image) -> ImageQuality:
    """The quality of an upright image in sRGB, of mode RGB or L, or of its `working_luma`.

    All measures except the size are taken on that luma, so that they do not depend on the
    resolution.
    """
    luma = working_luma(image)
    return ImageQuality(
        width=image.width,
        height=image.height,
        brightness=_mean(luma) / 255,
        dark_share=_mean(_evaluate(lambda args: args["float"](args["x"] <= _MAX_BLACK), x=luma)),
        bright_share=_mean(_evaluate(lambda args: args["float"](args["x"] >= _MIN_WHITE), x=luma)),
        sharpness=_laplacian_variance(luma),
    )


def has_frame(image: Image.Image) -> bool:
    """True if whole rows or columns at two opposite edges of an image show no part of a picture.

    These are dark (a luma of at most 32 of 255) or of one luma (within 8), and at least 2% of the
    side at each of the two edges. An image with more than half of its side in such lines has no
    frame. Rounded vignettes, whose middle reaches the edges, are none: dermatoscopic images have
    them.

    Args:
        image: As in `measure_quality`.
    """
    luma = working_luma(image).convert("L")
    width, height = luma.size

    def is_plain(box: tuple[int, int, int, int]) -> bool:
        low, high = cast(tuple[int, int], luma.crop(box).getextrema())
        return high <= _MAX_FRAME or high - low <= _MAX_FRAME_RANGE

    def plain_at_ends(boxes: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
        before, behind = (sum(1 for _ in takewhile(is_plain, one)) for one in (boxes, boxes[::-1]))
        return before, behind

    rows = plain_at_ends([(0, y, width, y + 1) for y in range(height)])
    columns = plain_at_ends([(x, 0, x + 1, height) for x in range(width)])
    sides = ((rows, height), (columns, width))
    return all(sum(ends) <= _MAX_FRAME_SHARE * side for ends, side in sides) and any(
        min(ends) >= _MIN_FRAME_SHARE * side for ends, side in sides
    )


def working_luma(image: Image.Image) -> Image.Image:
    """The luma (ITU-R BT.601) in 0..255, mode F, reduced to 128 pixels for the longer side.

    `image` is upright in sRGB, of mode RGB or L; a smaller one is not enlarged, and a luma stays.
    """
    gray = image if image.mode == "F" else image.convert("L").convert("F")
    scale = _WORKING_SIDE_PX / max(gray.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in gray.size)
        gray = gray.resize((width, height), Image.Resampling.BILINEAR)  # antialiased by Pillow
    return gray


def _laplacian_variance(luma: Image.Image) -> float:
    """The variance of the four-neighbour Laplacian, without the border.

    Args:
        luma: Mode F. 0 for an image with a side below three pixels. The focus measure LAPV of
            Pech-Pacheco, Cristobal, Chamorro-Martinez and Fernandez-Valdivia, "Diatom autofocusing
            in brightfield microscopy", ICPR 2000, vol. 3, 314-317.
    """
    if min(luma.size) < 3:
        return 0.0
    laplacian = _evaluate(
        lambda args: args["up"] + args["down"] + args["left"] + args["right"] - args["x"] * 4,
        x=_shifted(luma, 0, 0),
        up=_shifted(luma, 0, -1),
        down=_shifted(luma, 0, 1),
        left=_shifted(luma, -1, 0),
        right=_shifted(luma, 1, 0),
    )
    mean = _mean(laplacian)
    return _mean(_evaluate(lambda args: (args["x"] - mean) * (args["x"] - mean), x=laplacian))


def _shifted(image: Image.Image, x: int, y: int) -> Image.Image:
    """The image without its border of one pixel, moved by an offset."""
    return image.crop((1 + x, 1 + y, image.width - 1 + x, image.height - 1 + y))


def _evaluate(expression: Any, **images: Image.Image) -> Image.Image:
    result: Image.Image = ImageMath.lambda_eval(expression, **images)
    return result


def _mean(image: Image.Image) -> float:
    """The mean of an image of mode F; Pillow accumulates it in double precision."""
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(mean, float)
    return mean
