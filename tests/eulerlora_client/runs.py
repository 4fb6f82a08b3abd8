"""Results with fixed values."""

import json
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from tests.eulerlora_client.conftest import Reply
from tests.eulerlora_contract.policy_inputs import GOOD, PREDICTION

DETAILS = {
    "name": "tiny",
    "revision": "sha256:0",
    "classes": [{"name": name, "description": name.upper()} for name in ("mel", "nv")],
    "adapters": 2,
    "input_size": 32,
    "image_limits": {
        "min_side": 32,
        "max_side": 8192,
        "max_pixels": 24_000_000,
        "max_jpeg_pixels": 64_000_000,
        "max_request_pixels": 512_000_000,
        "media_types": ["image/jpeg", "image/png", "image/webp"],
    },
    "max_body_bytes": 100_000,
    "max_samples": 64,
    "thresholds": [],
    "provenance": {},
}
"""The answer of `/models/tiny`."""


def random_png(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


TRIAGE: dict[str, Any] = {
    "title": "Urgent",
    "pathway": "Have a clinician look at this image before the others.",
    "reasons": [],
    "warning": "Not a medical device.",
    "policy": {
        "version": 3, "hash": "sha256:1", "established": False, "notice": "N", "measured": [],
    },
    "target": {
        "name": "malignant", "classes": ["mel"], "probability": 0.2, "routine": 0.04,
        "urgent": 0.05,
    },
    "quality": GOOD.model_dump(),
    "class_names": {"mel": "melanoma", "nv": "melanocytic nevus (mole)"},
    "prediction": PREDICTION,
}  # fmt: skip


def triage_document(disposition: str) -> dict[str, Any]:
    """The JSON object of a result."""
    return TRIAGE | {"disposition": disposition}


def triage_reply(disposition: str) -> Reply:
    content = json.dumps(triage_document(disposition)).encode()
    return 200, {"Content-Type": "application/json"}, content
