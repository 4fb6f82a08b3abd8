"""Image quality measured from the pixels in sRGB: size, brightness, clipping and sharpness."""

from io import BytesIO
from typing import Any

from PIL import Image, ImageCms, ImageMath

from eulerlora_client.contract.answers import ImageQuality

WORKING_SIDE_PX = 128
"""Longer side at which brightness, clipping and sharpness are measured."""

MAX_BLACK = 5
MIN_WHITE = 250
LEVELS_16_BIT_PER_8_BIT = 257


def measure_quality(image: Image.Image) -> ImageQuality:
    """Returns the quality of an image of any mode that Pillow converts to gray.

    All measures except the size are taken on the luma (ITU-R BT.601) in sRGB, reduced to 128
    pixels for the longer side, so that they do not depend on the resolution. Smaller images are
    not enlarged.
    """
    luma = _working_luma(image)
    return ImageQuality(
        width=image.width,
        height=image.height,
        brightness=_mean(luma) / 255,
        dark_share=_mean(_evaluate(lambda args: args["float"](args["x"] <= MAX_BLACK), x=luma)),
        bright_share=_mean(_evaluate(lambda args: args["float"](args["x"] >= MIN_WHITE), x=luma)),
        sharpness=laplacian_variance(luma),
    )


def laplacian_variance(luma: Image.Image) -> float:
    """Returns the variance of the four-neighbour Laplacian, without the border.

    luma: mode F. 0 for an image with a side below three pixels. The focus measure LAPV of
    Pech-Pacheco, Cristobal, Chamorro-Martinez and Fernandez-Valdivia, "Diatom autofocusing in
    brightfield microscopy", ICPR 2000, vol. 3, 314-317.
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
    """Returns the image without its border of one pixel, moved by an offset."""
    return image.crop((1 + x, 1 + y, image.width - 1 + x, image.height - 1 + y))


def _evaluate(expression: Any, **images: Image.Image) -> Image.Image:
    result: Image.Image = ImageMath.lambda_eval(expression, **images)
    return result


def _mean(image: Image.Image) -> float:
    """Returns the mean of an image of mode F; Pillow accumulates it in double precision."""
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(mean, float)
    return mean


def _working_luma(image: Image.Image) -> Image.Image:
    """Returns the luma in 0..255, mode F."""
    gray = _gray(in_srgb(image)).convert("F")
    scale = WORKING_SIDE_PX / max(gray.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in gray.size)
        gray = gray.resize((width, height), Image.Resampling.BILINEAR)  # antialiased by Pillow
    return gray


def _gray(image: Image.Image) -> Image.Image:
    """Returns gray pixels as the service decodes them: 16 bits scaled, transparency over white."""
    if image.mode.startswith("I"):  # a plain conversion would clip 16 bits
        return image.convert("F").point(lambda level: level * (1 / LEVELS_16_BIT_PER_8_BIT) + 0)
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return image.convert("L")


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
