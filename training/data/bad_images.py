"""Images that cannot be used: refused, or left out and listed."""

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from eulerlora.errors import DataError

OnBad = Callable[[str, str], None]
"""(name, reason) -> None, if the image or row of that name is to be left out; or raises."""


class Selected(Protocol):
    """A set of images with what was left out of it: reasons by name."""

    @property
    def skipped(self) -> Mapping[str, str]: ...


def refuse(name: str, reason: str) -> None:
    """Raises DataError: no image may be bad."""
    raise DataError(f"{name}: {reason}; --skip-bad leaves such images out")


def announce(*sets: Selected) -> None:
    """Says on stderr which images were left out, and why; nothing where none was."""
    skipped = {name: reason for each in sets for name, reason in each.skipped.items()}
    if skipped:
        images = "image" if len(skipped) == 1 else "images"
        print(f"skipped {len(skipped):,} {images}:", file=sys.stderr)
    for name, reason in skipped.items():
        print(f"  {name}: {reason}", file=sys.stderr)
