"""Colours of a picture in sRGB, so that its quality and its thumbnail are those of what is shown.

The service and `eulerlora` convert alike (eulerlora/images/colour.py).
"""

from io import BytesIO

from PIL import Image, ImageCms

INPUT_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}
"""Colour space of a profile -> the mode from which LittleCMS converts."""

CONVERTIBLE = {
    "RGB": {"1", "L", "LA", "P", "PA", "RGB", "RGBA"},
    "L": {"1", "L", "LA"},
    "CMYK": {"CMYK"},
}
"""Input mode -> the modes of images whose profile may have that colour space."""


def in_srgb(image: Image.Image) -> Image.Image:
    """Returns the decoded image with the colours of its ICC profile in sRGB, as RGB or RGBA.

    Unchanged without a profile, and with one that is broken or that of sRGB. Raises the errors of
    Pillow for a damaged file, and ValueError for indexed colours without a palette.
    """
    image.load()
    if image.mode in ("P", "PA") and image.palette is None:
        raise ValueError("the image has indexed colours but no palette")
    transform = _transform(image.info.get("icc_profile") or b"")
    if transform is None or image.mode not in CONVERTIBLE[transform.input_mode]:
        return image
    converted = transform.apply(image.convert(transform.input_mode))
    if image.has_transparency_data:
        converted.putalpha(image.convert("RGBA").getchannel("A"))
    return converted


def _transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Returns the transform to sRGB; None for a profile that is empty, broken or that of sRGB."""
    if not profile:
        return None
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        if (source.profile.profile_description or "").startswith("sRGB"):
            return None
        target = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
        mode = INPUT_MODES[source.profile.xcolor_space]
        return ImageCms.ImageCmsTransform(source, target, mode, "RGB")
    except (OSError, ValueError, KeyError):
        return None
