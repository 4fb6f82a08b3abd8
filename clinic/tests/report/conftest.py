"""A policy, and triage rows of every status with their images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clinic.tests.triage_rows import (
    BLURRED,
    UNFAMILIAR,
    failed,
    make_prediction,
    passes,
    triaged,
)
from eulerlora_clinic.policy.policy import Policy, default_policy
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract.answers import ImageQuality, Prediction

_HOSTILE = '"><img src=x onerror=alert(1)>&amp;\u202egpj.\x07.jpg'


@pytest.fixture(scope="session")
def policy() -> Policy:
    """The packaged policy with thresholds that do not change when it is fitted again."""
    content = default_policy().model_dump() | {"evidence": ()}
    content["target"] = {
        "name": "malignant", "classes": ("mel", "bcc", "akiec"), "routine": 0.1, "urgent": 0.4
    }  # fmt: skip
    content["uncertainty"] = {"entropy_nats": 1.2}
    return Policy.model_validate(content)


@pytest.fixture(scope="module")
def rows(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> list[TriageRow]:
    folder = tmp_path_factory.mktemp("images")

    def image(name: str, seed: int, **shape: tuple[int, int]) -> Path:
        return _picture(folder / name, seed, **shape)

    def row(path: Path, prediction: Prediction, *quality: ImageQuality) -> TriageRow:
        return triaged(path, prediction, policy, *quality)

    broken = folder / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff this is not an image")
    return [
        row(image("routine.jpg", 1), make_prediction(passes("nv", 7, 0.4, 1))),
        row(image("urgent.jpg", 2), make_prediction(passes("mel", 4, 0.8, 2))),
        row(
            image(_HOSTILE, 3),
            make_prediction(
                passes("bkl", 1.5, 1.4, 3), warnings=({"code": "a_code", "message": "<b>note</b>"},)
            ),
        ),
        row(
            image("fixed.png", 4),
            make_prediction(passes("nv", 6, 0.2, 4, 2), mode="det", samples=1, detail=False),
        ),
        row(image("blurred.jpg", 5), make_prediction(passes("nv", 7, 0.3, 5)), BLURRED),
        row(image("blurred urgent.jpg", 6), make_prediction(passes("bcc", 3, 0.6, 6)), BLURRED),
        row(
            image("no threshold.jpg", 7, size=(300, 500)),
            make_prediction(passes("vasc", 6, 0.3, 7), ood=None, ood_threshold=None),
        ),
        row(image("ood.jpg", 8), make_prediction(passes("nv", 0, 0.1, 8))),
        row(image("unfamiliar.jpg", 9), make_prediction(passes("nv", 1, 0.1, 9), **UNFAMILIAR)),
        failed(broken, "unusable_image", "the JPEG data is broken or truncated"),
        failed(folder / "gone.jpg", "unreadable_file", "cannot be read (No such file)"),
    ]


def _picture(path: Path, seed: int, size: tuple[int, int] = (400, 300)) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path
