"""The known answer of a checkpoint: what is stored, what is refused, what counts as wrong."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from eulerlora.checkpoint import load_checkpoint, read_config, save_checkpoint, write_config
from eulerlora.errors import CheckpointError
from eulerlora.known_answer import (
    DRAWS,
    EXPECTED_FILE,
    IMAGE_FILE,
    TOLERANCES,
    predict_known_answer,
    read_known_answer,
    synthetic_image,
)
from eulerlora.model import EulerLoRA
from eulerlora.runtime import Runtime
from eulerlora.settings import RuntimeSettings

Damage = Callable[[Path], object]


def test_the_stored_answers_are_what_the_library_predicts(checkpoint_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    known = read_known_answer(checkpoint_folder, model.config)
    for draw, answer in zip(DRAWS, known.answers, strict=True):
        wanted = model.predict(
            [checkpoint_folder / IMAGE_FILE],
            draw.mode,
            None if draw.mode == "det" else draw.samples,
            draw.seed,
            sampler=draw.sampler,
        ).probabilities[0]
        assert answer.draw == draw
        assert answer.probabilities == pytest.approx(wanted.tolist(), abs=1e-5)


def test_both_modes_and_samplers_are_asked_and_their_answers_differ(
    checkpoint_folder: Path,
) -> None:
    known = read_known_answer(checkpoint_folder, read_config(checkpoint_folder))
    asked = [(each.draw.mode, each.draw.samples, each.draw.sampler) for each in known.answers]
    assert asked == [
        ("det", 1, "independent"), ("stoch", 4, "independent"), ("stoch", 4, "balanced")
    ]  # fmt: skip
    assert len({each.probabilities for each in known.answers}) == 3


def test_the_picture_is_smooth_the_same_every_time_and_different_in_every_corner(
    checkpoint_folder: Path,
) -> None:
    picture = synthetic_image().int()
    assert torch.equal(picture, synthetic_image().int())
    assert picture.diff(dim=1).abs().max() < 16
    assert picture.diff(dim=2).abs().max() < 16
    corners = {tuple(picture[:, y, x].tolist()) for y in (0, -1) for x in (0, -1)}
    assert len(corners) == 4
    with Image.open(checkpoint_folder / IMAGE_FILE) as stored:
        assert (stored.format, stored.mode) == ("PNG", "RGB")


def test_half_precision_weights_answer_as_stored(make_network, make_config, tmp_path) -> None:
    network = make_network()
    config = make_config(network, torch.float16)
    save_checkpoint(tmp_path / "saved", network, config, "# card\n", torch.float16)
    known = read_known_answer(tmp_path / "saved", config)
    loaded = load_checkpoint(tmp_path / "saved").network
    assert known.fault(predict_known_answer(loaded, known.pixels), "float32") is None


@pytest.mark.parametrize("precision", TOLERANCES)
def test_an_intact_model_gives_its_known_answer(checkpoint_folder: Path, precision) -> None:
    checkpoint = load_checkpoint(checkpoint_folder)
    known = read_known_answer(checkpoint_folder, checkpoint.config)
    settings = RuntimeSettings(precision=precision)
    runtime = Runtime(checkpoint.network, torch.device("cpu"), settings)
    assert known.fault(predict_known_answer(runtime, known.pixels), precision) is None


def test_a_changed_weight_is_a_fault_that_names_mode_class_and_numbers(
    checkpoint_folder: Path,
) -> None:
    checkpoint = load_checkpoint(checkpoint_folder)
    known = read_known_answer(checkpoint_folder, checkpoint.config)
    with torch.no_grad():
        checkpoint.network.heads.bias[:, 1] += 0.1
    fault = known.fault(predict_known_answer(checkpoint.network, known.pixels), "float32")
    assert fault is not None
    assert "mode det" in fault
    assert "within 0.001" in fault
    assert any(name in fault for name in known.classes)


def test_a_fault_in_mode_stoch_alone_is_found(checkpoint_folder: Path) -> None:
    checkpoint = load_checkpoint(checkpoint_folder)
    known = read_known_answer(checkpoint_folder, checkpoint.config)
    det, *stoch = predict_known_answer(checkpoint.network, known.pixels)
    for broken in range(len(stoch)):
        given = [each.roll(int(index == broken), dims=1) for index, each in enumerate(stoch)]
        fault = known.fault([det, *given], "float32")
        assert fault is not None
        assert "mode stoch" in fault


def test_answers_that_are_not_finite_are_a_fault(checkpoint_folder: Path) -> None:
    checkpoint = load_checkpoint(checkpoint_folder)
    known = read_known_answer(checkpoint_folder, checkpoint.config)
    det, *stoch = predict_known_answer(checkpoint.network, known.pixels)
    broken = [torch.full_like(each, torch.nan) for each in stoch]
    assert "mode stoch gave NaN" in str(known.fault([det, *broken], "bfloat16"))


def test_new_thresholds_leave_the_known_answer_valid(checkpoint_copy: Path) -> None:
    config = read_config(checkpoint_copy)
    before = read_known_answer(checkpoint_copy, config)
    write_config(checkpoint_copy, config.model_copy(update={"thresholds": ()}))
    checkpoint = load_checkpoint(checkpoint_copy)
    after = read_known_answer(checkpoint_copy, checkpoint.config)
    assert after.answers == before.answers
    assert after.fault(predict_known_answer(checkpoint.network, after.pixels), "float32") is None


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        fields = json.loads((folder / EXPECTED_FILE).read_text())
        change(fields)
        (folder / EXPECTED_FILE).write_text(json.dumps(fields))

    return damage


def without_a_class(fields: dict[str, Any]) -> None:
    for each in fields["answers"]:
        first, *rest = each["probabilities"]
        each["probabilities"] = [first + rest[0], *rest[1:]]


def another_picture(content: bytes) -> Damage:
    """Replaces the picture, and its digest too."""

    def damage(folder: Path) -> None:
        (folder / IMAGE_FILE).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        edited(lambda fields: fields.update(picture_sha256=digest))(folder)

    return damage


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (lambda folder: (folder / EXPECTED_FILE).unlink(), EXPECTED_FILE, "cannot be read"),
        (lambda folder: (folder / IMAGE_FILE).unlink(), IMAGE_FILE, "cannot be read"),
        (lambda folder: (folder / EXPECTED_FILE).write_text('{"answers'), EXPECTED_FILE, "JSON"),
        (lambda folder: (folder / EXPECTED_FILE).write_bytes(b"\xff{}"), EXPECTED_FILE, "JSON"),
        (edited(lambda f: f.update(more=1)), EXPECTED_FILE, "more: Extra"),
        (
            edited(lambda f: f.pop("picture_sha256")),
            EXPECTED_FILE,
            "picture_sha256: Field required",
        ),
        (edited(lambda f: f["answers"].pop()), EXPECTED_FILE, "answers are not to"),
        (
            edited(lambda f: f["answers"][1]["draw"].update(seed=1)),
            EXPECTED_FILE,
            "answers are not to",
        ),
        (edited(lambda f: f["answers"][0]["probabilities"].pop()), EXPECTED_FILE, "add up to 1"),
        (
            edited(lambda f: f["answers"][0]["probabilities"].append(2)),
            EXPECTED_FILE,
            "less than or",
        ),
        (edited(lambda f: f["answers"][0].update(probabilities=[])), EXPECTED_FILE, "add up to 1"),
        (edited(without_a_class), EXPECTED_FILE, "has 2 probabilities for 3 classes"),
        (lambda folder: (folder / IMAGE_FILE).write_bytes(b"x"), IMAGE_FILE, "its SHA-256 is not"),
        (another_picture(b"no picture at all"), IMAGE_FILE, "cannot be opened as an image"),
    ],
)
def test_a_damaged_known_answer_is_refused_by_an_error_that_names_the_file(
    checkpoint_copy: Path, damage: Damage, file: str, reason: str
) -> None:
    config = read_config(checkpoint_copy)
    read_known_answer(checkpoint_copy, config)
    damage(checkpoint_copy)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_known_answer(checkpoint_copy, config)
    assert caught.value.path == checkpoint_copy / file
    assert "\n" not in str(caught.value)
