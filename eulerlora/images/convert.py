"""Conversion of a folder's BMP and TIFF files to PNG, which the models read.

The parsers of BMP and TIFF run here only, on a user's request; no other part of the package opens
such a file.
"""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from eulerlora.images.files import EXTENSIONS
from eulerlora_contract.errors import ImageError, ImageFilesError
from eulerlora_contract.image_folders import CONVERTED, list_files
from eulerlora_contract.images import PARSER_ERRORS
from eulerlora_contract.output_files import new_folder

_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}
"""Modes of Pillow that a PNG stores without loss."""
_BITS_PER_SAMPLE = 258  # tag of TIFF 6.0, section 8


@dataclass(frozen=True)
class Conversion:
    """The outcome of a conversion.

    Attributes:
        converted: Names of the PNG files.
        copied: Number of other files.
        changes: What a PNG does not keep, one line each.
        failures: Why files are left out, one line each.
    """

    converted: Sequence[str]
    copied: int
    changes: Sequence[str]
    failures: Sequence[str]


def convert_folder(folder: Path, out: Path) -> Conversion:
    """Copies a folder to the new folder `out`, with BMP and TIFF files as PNG.

    A converted file has the name of the original and `.png`, by which `labels.csv` still finds it.
    Pixels, colour profile and orientation are kept. Hidden files and those of systems are left out.

    Raises:
        ImageFilesError: There is no BMP or TIFF file.
        StorageError: The disk is full; nothing is written then.
    """
    selection = list_files([folder], EXTENSIONS)
    taken = {*selection.files}
    originals = [file for file in selection.others if file.suffix.lower() in CONVERTED]
    if not originals:
        raise ImageFilesError(f"{folder}: expected {' or '.join(CONVERTED)} files, got none")
    converted, changes, failures, copied = [], [], [], 0
    with new_folder(out) as partial:
        for file in (*selection.files, *selection.others):
            name = file.relative_to(folder)
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if file not in originals:
                if file.is_file():
                    shutil.copy2(file, target)
                    copied += 1
                else:
                    failures.append(f"{name}: expected a regular file")
                continue
            png = target.with_name(f"{target.name}.png")
            try:
                if file.with_name(png.name) in taken:
                    raise ImageError(f"{png.name} exists too")
                changes += [f"{name}: {change}" for change in _convert(file, png)]
                converted.append(f"{name}.png")
            except ImageError as error:
                failures.append(f"{name}: {error}")
    return Conversion(converted, copied, changes, failures)


def _convert(file: Path, png: Path) -> Iterator[str]:
    """Writes a BMP or TIFF file as PNG; yields what the PNG does not keep. Raises ImageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=[CONVERTED[file.suffix.lower()]]) as image:
                pages = getattr(image, "n_frames", 1)
                if pages > 1:
                    raise ImageError(f"expected one image, got {pages} pages")
                bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, ())
                image.load()
                upright = ImageOps.exif_transpose(image)
                if upright.mode == "YCbCr":
                    upright = upright.convert("RGB")
                if upright.mode == "I;16B":  # big-endian
                    upright = Image.fromarray(np.asarray(upright).astype(np.uint16))
                if upright.mode not in _PNG_MODES:
                    raise ImageError(
                        f"expected gray, indexed or RGB colours, got {upright.mode}; export it as "
                        "JPEG, PNG or WebP"
                    )
                if upright.mode.startswith("RGB") and bits and max(bits) > 8:
                    yield f"8 of {max(bits)} bits per sample are kept"
                upright.save(png, "PNG", icc_profile=image.info.get("icc_profile"))
    except PARSER_ERRORS as error:
        raise ImageError("the image is damaged or truncated") from error
