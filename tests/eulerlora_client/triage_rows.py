"""Triage rows of every kind, as a run over a folder leaves them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import ImageQuality
from eulerlora_client.policy.policy import Policy, default_policy
from eulerlora_client.policy.rules import MalignantRules, UncertaintyRules
from eulerlora_client.triage.run import RowProblem, TriageRow

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
REVISION = "sha256:" + "5f" * 32
HOSTILE = '"><img src=x onerror=alert(1)>&amp;\u202egpj.\x07.jpg'
SHARP = ImageQuality(
    width=600, height=450, brightness=0.6, dark_share=0.0, bright_share=0.01, sharpness=85.0
)
BLURRED = ImageQuality(
    width=600, height=450, brightness=0.6, dark_share=0.0, bright_share=0.0, sharpness=0.4
)


def steady_policy() -> Policy:
    """The packaged policy, with thresholds that stay when the packaged ones are fitted anew."""
    changed = {
        "malignant": MalignantRules(classes=("mel", "bcc", "akiec"), urgent=0.1),
        "uncertainty": UncertaintyRules(entropy_nats=1.2),
        "evidence": None,
    }
    return default_policy().model_copy(update=changed)


def lesion(path: Path, seed: int, size: tuple[int, int] = (400, 300)) -> Path:
    """Writes a picture of a dark spot on skin, which differs by seed."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(0, 6, (size[1], size[0], 3))
    skin = np.array([214, 172, 150]) + draw.normal(0, 10, 3)
    image = Image.fromarray((skin + noise).clip(0, 255).astype(np.uint8))
    middle, radius = np.array(size) / 2, min(size) * draw.uniform(0.15, 0.35)
    ellipse = ImageDraw.Draw(image)
    for shrink in np.linspace(1, 0.3, 12):
        tone = tuple(int(part) for part in np.array([150, 95, 70]) * (0.4 + 0.6 * shrink))
        shift = draw.normal(0, radius / 12, 4)
        box = (*(middle - radius * shrink), *(middle + radius * shrink))
        ellipse.ellipse(tuple(float(a + b) for a, b in zip(box, shift, strict=True)), fill=tone)
    image.save(path)
    return path


def prediction(
    by_trajectory: Sequence[Sequence[float]], detail: bool = True, **changed: object
) -> Prediction:
    """A stochastic prediction with these trajectories, its figures reckoned from them."""
    rows = np.asarray(by_trajectory, dtype=float)
    mean = rows.mean(axis=0)
    entropy = _entropy(mean)
    expected = float(np.mean([_entropy(row) for row in rows]))
    values: dict[str, object] = {
        "request_id": "01JD0Z3V6T",
        "model": "ham10000",
        "revision": REVISION,
        "mode": "stoch",
        "samples": len(rows) // 2,
        "trajectories": len(rows),
        "seed": 1234567,
        "label": CLASSES[int(mean.argmax())],
        "probabilities": dict(zip(CLASSES, mean.tolist(), strict=True)),
        "entropy": entropy,
        "expected_entropy": expected,
        "mutual_information": max(entropy - expected, 0.0),
        "msp": float(mean.max()),
        "ood": bool(mean.max() < 0.5),
        "ood_threshold": 0.5,
        "warnings": (),
        "trajectory_probabilities": rows.tolist() if detail else None,
    }
    return Prediction.model_validate(values | changed)


def passes(label: str, sureness: float, spread: float, seed: int, count: int = 8) -> np.ndarray:
    """(count, 7) probabilities around a label. spread: how much the passes differ, in logits."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 0.5, 7) + spread * draw.normal(size=(count, 7))
    logits[:, CLASSES.index(label)] += sureness
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def triaged(path: Path, found: Prediction, quality: ImageQuality, policy: Policy) -> TriageRow:
    """A row that was answered and decided."""
    return TriageRow(
        path=path,
        prediction=found,
        quality=quality,
        decision=policy.decide(found, quality),
        problem=None,
    )


def failed(path: Path, code: str, detail: str) -> TriageRow:
    """A row without an answer."""
    return TriageRow(
        path=path,
        prediction=None,
        quality=None,
        decision=None,
        problem=RowProblem(code=code, detail=detail),
    )


def rows_of_all_kinds(folder: Path, policy: Policy) -> list[TriageRow]:
    """One row or more for each disposition, and failed ones; pictures are made in the folder."""

    def picture(name: str, seed: int, **shape: tuple[int, int]) -> Path:
        return lesion(folder / name, seed, **shape)

    def row(path: Path, found: Prediction, quality: ImageQuality = SHARP) -> TriageRow:
        return triaged(path, found, quality, policy)

    broken = folder / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff this is no picture")
    return [
        row(picture("routine.jpg", 1), prediction(passes("nv", 7, 0.4, 1))),
        row(picture("urgent.jpg", 2), prediction(passes("mel", 4, 0.8, 2))),
        row(picture(HOSTILE, 3), prediction(passes("bkl", 1.5, 1.4, 3), warnings=("<b>note</b>",))),
        row(
            picture("fixed.png", 4),
            prediction(passes("nv", 6, 0.2, 4, 2), mode="det", samples=1, detail=False),
        ),
        row(picture("blurred.jpg", 5), prediction(passes("nv", 7, 0.3, 5)), BLURRED),
        row(picture("blurred urgent.jpg", 6), prediction(passes("bcc", 3, 0.6, 6)), BLURRED),
        row(
            picture("no threshold.jpg", 7, size=(300, 500)),
            prediction(passes("vasc", 6, 0.3, 7), ood=None, ood_threshold=None),
        ),
        row(picture("unlike.jpg", 8), prediction(passes("nv", 0, 0.1, 8))),
        failed(broken, "unusable_image", "the JPEG data is broken or truncated"),
        failed(folder / "gone.jpg", "unreadable_file", "cannot be read (No such file)"),
    ]


def _entropy(probabilities: np.ndarray) -> float:
    return -math.fsum(each * math.log(each) for each in probabilities.tolist() if each > 0)
