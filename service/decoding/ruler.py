"""Rulers in images: dark ticks, equally spaced along a side of the image."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

_WORKING_SIDE_PX = 200
"""Longer side at which ticks are found, in the pixels of the limits below."""
_MIN_SIDE_PX = 32
_MIN_DEPTH = 10  # luma of a tick below that of the skin on both sides of it
_REACH_PX = 2  # from the middle of a tick to the skin
_LENGTH_PX = 4
_MIN_TICKS = 6
_PITCHES_PX = range(4, 31)
_MIN_SHARE = 0.8


def has_ruler(image: Image.Image) -> bool:
    """True if an upright image has a ruler that is parallel to one of its sides.

    A ruler is a row or column with six or more short dark lines across it, at least 80% of which
    have one at the next two places of one pitch, give or take a pixel. Hairs are lines too, but at
    no pitch. Rulers that are turned by more than a few degrees, and rounded ones, are not found.

    Args:
        image: In sRGB, of mode RGB or L.
    """
    luma = image.convert("L")
    luma.thumbnail((_WORKING_SIDE_PX, _WORKING_SIDE_PX), Image.Resampling.BOX)
    pixels = np.asarray(luma, np.int16)
    return min(pixels.shape) >= _MIN_SIDE_PX and (_has_ticks(pixels) or _has_ticks(pixels.T))


def _has_ticks(luma: npt.NDArray[np.int16]) -> bool:
    """True for ticks in the direction of the columns. `luma`: (height, width)."""
    skin = np.minimum(luma[:, : -2 * _REACH_PX], luma[:, 2 * _REACH_PX :])
    depth: npt.NDArray[Any] = skin - luma[:, _REACH_PX:-_REACH_PX]
    ends = len(depth) - _LENGTH_PX + 1
    depth = np.minimum.reduce([depth[start : start + ends] for start in range(_LENGTH_PX)])
    left, middle, right = depth[:, :-2], depth[:, 1:-1], depth[:, 2:]
    ticks = (middle >= _MIN_DEPTH) & (middle >= left) & (middle > right)
    ticks = ticks[np.count_nonzero(ticks, axis=1) >= _MIN_TICKS]
    near = ticks.copy()
    near[:, 1:] |= ticks[:, :-1]
    near[:, :-1] |= ticks[:, 1:]
    wanted = np.count_nonzero(ticks, axis=1)

    def followed(rows: npt.NDArray[Any], places: int, steps: int) -> npt.NDArray[Any]:
        """Those of the rows whose ticks have, but for a few, one that is `places` behind."""
        both = ticks[rows, :-places] & near[rows, places:]
        is_followed = np.count_nonzero(both, axis=1) >= _MIN_SHARE * (wanted[rows] - steps)
        left: npt.NDArray[Any] = rows[is_followed]
        return left

    every = np.arange(len(ticks))
    return bool(every.size) and any(
        followed(followed(every, pitch, 1), 2 * pitch, 2).size > 0 for pitch in _PITCHES_PX
    )
