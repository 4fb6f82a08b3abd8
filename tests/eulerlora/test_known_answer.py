"""eulerlora.checkpoint.files: what is stored, what is refused, and what counts as a wrong model."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.files import (
    DRAWS,
    EXPECTED_FILE,
    IMAGE_FILE,
    TOLERANCES,
    Checkpoint,
    KnownAnswer,
    load_checkpoint,
    predict_known_answer,
    read_config,
    read_known_answer,
    save_checkpoint,
    synthetic_image,
    write_config,
)
from eulerlora.errors import CheckpointError
from eulerlora.model import EulerLoRA
from eulerlora.nn.runtime import Runtime
from eulerlora.settings import RuntimeSettings

Damage = Callable[[Path], object]


@pytest.fixture
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return load_checkpoint(checkpoint_folder)


@pytest.fixture
def known(checkpoint_folder: Path, checkpoint: Checkpoint) -> KnownAnswer:
    return read_known_answer(checkpoint_folder, checkpoint.config)


def test_the_stored_probabilities_are_those_that_the_model_predicts(
    checkpoint_folder: Path, known: KnownAnswer
) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    for draw, stored in zip(DRAWS, known.expected, strict=True):
        predicted = model.predict(
            [checkpoint_folder / IMAGE_FILE],
            draw.mode,
            None if draw.mode == "det" else draw.samples,
            draw.seed,
            sampler=draw.sampler,
        ).probabilities[0]
        assert stored.draw == draw
        assert stored.probabilities == pytest.approx(predicted.tolist(), abs=1e-5)


def test_both_modes_and_samplers_are_stored_and_their_probabilities_differ(
    known: KnownAnswer,
) -> None:
    draws = [stored.draw for stored in known.expected]
    assert [(draw.mode, draw.samples, draw.sampler) for draw in draws] == [
        ("det", 1, "independent"), ("stoch", 4, "independent"), ("stoch", 4, "balanced")
    ]  # fmt: skip
    assert len({stored.probabilities for stored in known.expected}) == 3


def test_the_image_is_reproducible_smooth_and_different_in_every_corner(
    checkpoint_folder: Path,
) -> None:
    image = synthetic_image().int()
    assert torch.equal(image, synthetic_image().int())
    assert image.diff(dim=1).abs().max() < 16
    assert image.diff(dim=2).abs().max() < 16
    corners = {tuple(image[:, y, x].tolist()) for y in (0, -1) for x in (0, -1)}
    assert len(corners) == 4
    with Image.open(checkpoint_folder / IMAGE_FILE) as stored:
        assert (stored.format, stored.mode) == ("PNG", "RGB")


def test_half_precision_weights_give_the_stored_probabilities(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    config = make_config(network, torch.float16)
    save_checkpoint(tmp_path / "saved", network, config, "# card\n", torch.float16)
    known = read_known_answer(tmp_path / "saved", config)
    loaded = load_checkpoint(tmp_path / "saved").network
    assert known.fault(predict_known_answer(loaded, known.pixels), "float32") is None


@pytest.mark.parametrize("precision", TOLERANCES)
def test_an_intact_model_has_no_fault(
    checkpoint: Checkpoint, known: KnownAnswer, precision
) -> None:
    settings = RuntimeSettings(precision=precision)
    runtime = Runtime(checkpoint.network, torch.device("cpu"), settings)
    assert known.fault(predict_known_answer(runtime, known.pixels), precision) is None


def test_a_changed_weight_is_a_fault_that_names_mode_class_and_probabilities(
    checkpoint: Checkpoint, known: KnownAnswer
) -> None:
    with torch.no_grad():
        checkpoint.network.heads.bias[:, 1] += 0.1
    fault = known.fault(predict_known_answer(checkpoint.network, known.pixels), "float32")
    assert fault is not None
    assert "mode det" in fault
    assert "within 0.001" in fault
    assert any(name in fault for name in known.classes)


@pytest.mark.parametrize("draw", range(len(DRAWS)))
def test_the_probabilities_of_every_draw_are_checked(
    checkpoint: Checkpoint, known: KnownAnswer, draw: int
) -> None:
    outputs = predict_known_answer(checkpoint.network, known.pixels)
    outputs[draw] = outputs[draw].roll(1, dims=1)
    assert f"mode {DRAWS[draw].mode}" in str(known.fault(outputs, "float32"))


def test_non_finite_outputs_are_a_fault(checkpoint: Checkpoint, known: KnownAnswer) -> None:
    det, *stoch = predict_known_answer(checkpoint.network, known.pixels)
    broken = [torch.full_like(output, torch.nan) for output in stoch]
    assert "mode stoch: got NaN" in str(known.fault([det, *broken], "bfloat16"))


def test_new_thresholds_do_not_change_the_known_answer(checkpoint_copy: Path) -> None:
    config = read_config(checkpoint_copy)
    before = read_known_answer(checkpoint_copy, config)
    write_config(checkpoint_copy, config.model_copy(update={"thresholds": ()}))
    checkpoint = load_checkpoint(checkpoint_copy)
    after = read_known_answer(checkpoint_copy, checkpoint.config)
    assert after.expected == before.expected
    assert after.fault(predict_known_answer(checkpoint.network, after.pixels), "float32") is None


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Returns a function that applies `change` to the stored probabilities of a folder."""

    def damage(folder: Path) -> None:
        fields = json.loads((folder / EXPECTED_FILE).read_text())
        change(fields)
        (folder / EXPECTED_FILE).write_text(json.dumps(fields))

    return damage


def without_a_class(fields: dict[str, Any]) -> None:
    for answer in fields["answers"]:
        first, *rest = answer["probabilities"]
        answer["probabilities"] = [first + rest[0], *rest[1:]]


def replaced_image(content: bytes) -> Damage:
    """Returns a function that replaces the image and its stored digest."""

    def damage(folder: Path) -> None:
        (folder / IMAGE_FILE).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        edited(lambda fields: fields.update(picture_sha256=digest))(folder)

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no probabilities": (lambda folder: (folder / EXPECTED_FILE).unlink(), "cannot be read"),
    "truncated": (lambda folder: (folder / EXPECTED_FILE).write_text('{"answers'), "JSON"),
    "not UTF-8": (lambda folder: (folder / EXPECTED_FILE).write_bytes(b"\xff{}"), "JSON"),
    "unknown key": (edited(lambda f: f.update(more=1)), "more"),
    "missing key": (edited(lambda f: f.pop("picture_sha256")), "picture_sha256"),
    "missing draw": (edited(lambda f: f["answers"].pop()), "got other draws"),
    "other draw": (edited(lambda f: f["answers"][1]["draw"].update(seed=1)), "got other draws"),
    "sum below 1": (edited(lambda f: f["answers"][0]["probabilities"].pop()), "sum to 1"),
    "above 1": (edited(lambda f: f["answers"][0]["probabilities"].append(2)), "probabilities"),
    "empty": (edited(lambda f: f["answers"][0].update(probabilities=[])), "sum to 1"),
    "missing class": (edited(without_a_class), "expected 3 probabilities, got 2"),
}
IMAGE_DAMAGES: dict[str, tuple[Damage, str]] = {
    "no image": (lambda folder: (folder / IMAGE_FILE).unlink(), "cannot be read"),
    "other image": (lambda folder: (folder / IMAGE_FILE).write_bytes(b"x"), "its SHA-256 differs"),
    "not an image": (replaced_image(b"not an image"), "cannot be opened as an image"),
}


@pytest.mark.parametrize(
    ("damage", "reason", "file"),
    [
        *((*damage, EXPECTED_FILE) for damage in DAMAGES.values()),
        *((*damage, IMAGE_FILE) for damage in IMAGE_DAMAGES.values()),
    ],
    ids=[*DAMAGES, *IMAGE_DAMAGES],
)
def test_a_damaged_known_answer_is_an_error_that_names_the_file(
    checkpoint_copy: Path, damage: Damage, reason: str, file: str
) -> None:
    config = read_config(checkpoint_copy)
    read_known_answer(checkpoint_copy, config)
    damage(checkpoint_copy)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_known_answer(checkpoint_copy, config)
    assert caught.value.path == checkpoint_copy / file
    assert "\n" not in str(caught.value)
