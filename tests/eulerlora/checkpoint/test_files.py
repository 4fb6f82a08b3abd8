"""Checkpoint folders: round trips, damaged folders, saves that fail, and the known answer."""

import hashlib
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora.checkpoint.config import BackboneConfig
from eulerlora.checkpoint.files import (
    Checkpoint,
    load_checkpoint,
    predict_known_answer,
    read_config,
    read_known_answer,
    read_training_images,
    revision_of,
    save_checkpoint,
    stored_card,
    stored_revision,
)
from eulerlora.checkpoint.weights import read_backbone_weights, tensors_sha256
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.runtime import TorchRuntime
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.errors import CheckpointError, StorageError
from tests.checkpoint_files import write_config
from tests.conftest import predict_rows
from tests.damaged_checkpoints import CONFIG, LARGEST, LOADING, config_edited, edited
from tests.full_disk import file_size_limit

CARD = "# A card, größer than ASCII\n"
EXPECTED_FILE = "known_answer.json"
COMMON_FILES = {"README.md", "known_answer.png", EXPECTED_FILE}


def outputs(network: AdaptedVisionTransformer) -> Tensor:
    """Log-probabilities of two random images, one det and one stoch."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = [Draw(), Draw(mode="stoch", samples=3, seed=1)]
    return torch.cat(predict_rows(network, images, draws))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_round_trip_in_float32_changes_no_bit_of_the_probabilities(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    config = make_config(network)
    save_checkpoint(tmp_path / "saved", network, config, CARD)
    loaded = load_checkpoint(tmp_path / "saved")
    assert loaded.config == config
    assert torch.equal(outputs(loaded.network), outputs(network))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_storage_gives_the_probabilities_of_the_rounded_weights(
    make_network, make_config, tmp_path: Path, dtype: torch.dtype
) -> None:
    network = make_network()
    save_checkpoint(tmp_path / "saved", network, make_config(network, dtype), CARD, dtype)
    loaded = load_checkpoint(tmp_path / "saved").network
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    unrounded = outputs(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.to(dtype))
    assert torch.equal(outputs(loaded), outputs(network))
    assert not torch.equal(outputs(loaded), unrounded)


def test_a_loaded_network_keeps_its_weights_when_its_files_change(checkpoint_copy: Path) -> None:
    network = load_checkpoint(checkpoint_copy).network
    expected = outputs(network)
    for file in checkpoint_copy.glob("*.safetensors"):
        with file.open("r+b") as opened:  # in place, without replacing the file
            opened.seek(-1000, os.SEEK_END)
            opened.write(bytes(1000))
    assert torch.equal(outputs(network), expected)


@pytest.mark.parametrize("name", [CONFIG, "adapters.safetensors", "backbone.safetensors"])
def test_files_that_change_during_a_load_are_refused_or_those_of_the_revision(
    checkpoint_copy: Path,
    make_network,
    make_backbone,
    make_config,
    tmp_path: Path,
    monkeypatch,
    name,
) -> None:
    network = make_network(seed=9, backbone=make_backbone(seed=9))
    config = make_config(network).model_copy(update={"temperature": 2.0})
    save_checkpoint(tmp_path / "other", network, config, CARD)
    before = stored_revision(checkpoint_copy)

    def read_backbone_after_a_change(path: Path, *arguments: Any) -> Any:
        shutil.copy(tmp_path / "other" / name, checkpoint_copy)
        return read_backbone_weights(path, *arguments)

    read = "eulerlora.checkpoint.files.read_backbone_weights"
    monkeypatch.setattr(read, read_backbone_after_a_change)
    if name == CONFIG:
        loaded = load_checkpoint(checkpoint_copy)
        assert (loaded.revision, revision_of(loaded.config)) == (before, before)
    else:
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(checkpoint_copy)


def test_the_revision_is_the_digest_of_the_config(checkpoint_copy: Path) -> None:
    loaded = load_checkpoint(checkpoint_copy)
    text = (checkpoint_copy / "config.json").read_bytes()
    assert loaded.revision == "sha256:" + hashlib.sha256(text).hexdigest()
    assert loaded.revision == revision_of(read_config(checkpoint_copy))
    assert loaded.revision == stored_revision(checkpoint_copy)
    write_config(checkpoint_copy, loaded.config.model_copy(update={"thresholds": ()}))
    assert load_checkpoint(checkpoint_copy).revision != loaded.revision


@pytest.mark.parametrize("mask", [0o022, 0o077], ids=oct)
def test_other_users_can_read_all_files_as_far_as_the_umask_allows(
    make_network, make_config, tmp_path: Path, mask: int
) -> None:
    network = make_network()
    with umask(mask):
        save_checkpoint(tmp_path / "saved", network, make_config(network), CARD)
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "saved").iterdir()}
    assert modes == dict.fromkeys(modes, oct(0o644 & ~mask))
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o755 & ~mask


@pytest.mark.parametrize("damage", LOADING)
def test_a_damaged_checkpoint_is_an_error_that_names_file_and_reason(
    checkpoint_copy: Path, damage: str
) -> None:
    load_checkpoint(checkpoint_copy)
    file, reason, apply = LOADING[damage]
    apply(checkpoint_copy)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(checkpoint_copy)
    assert caught.value.path == checkpoint_copy / file
    assert reason in caught.value.reason
    assert str(checkpoint_copy / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def linked(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/environ")


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def bound(path: Path) -> None:
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")  # the whole path may exceed 108 bytes
    os.close(folder)


@pytest.mark.parametrize("replace", [linked, piped, bound])
@pytest.mark.parametrize(
    "name",
    ["README.md", CONFIG, "adapters.safetensors", EXPECTED_FILE],
)
def test_only_regular_files_are_read(
    checkpoint_copy: Path, name: str, replace: Callable[[Path], None]
) -> None:
    (checkpoint_copy / "report").mkdir()
    load_checkpoint(checkpoint_copy)
    replace(checkpoint_copy / name)
    for read in (load_checkpoint, read_config, stored_card, read_training_images):
        with pytest.raises(CheckpointError) as caught:
            read(checkpoint_copy)
        assert caught.value.path == checkpoint_copy / name


def test_a_snapshot_in_the_cache_of_the_hub_links_to_its_blobs_only(
    checkpoint_copy: Path, tmp_path: Path
) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in checkpoint_copy.iterdir():
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    expected = load_checkpoint(snapshot).revision
    current = tmp_path / "current"
    current.symlink_to(snapshot)  # the user's own link
    assert load_checkpoint(current).revision == expected
    (tmp_path / "secret").touch()
    for target in ("../../secret", "/proc/self/environ", "../../blobs/environ"):
        (snapshot / "README.md").unlink()
        (snapshot / "README.md").symlink_to(target)
        with pytest.raises(CheckpointError):
            load_checkpoint(snapshot)


@pytest.mark.parametrize("name", [CONFIG, "README.md", EXPECTED_FILE, "known_answer.png"])
def test_a_file_that_is_read_whole_has_a_limit(checkpoint_copy: Path, name: str) -> None:
    config = read_config(checkpoint_copy)
    os.truncate(checkpoint_copy / name, 2**40)  # a sparse file
    with pytest.raises(CheckpointError) as caught:
        stored_card(checkpoint_copy)
        read_known_answer(checkpoint_copy, config)
        load_checkpoint(checkpoint_copy)
    assert caught.value.path == checkpoint_copy / name


def test_digests_of_training_images_are_verified_where_the_config_has_theirs(
    make_network, make_config, tmp_path: Path
) -> None:
    network, folder = make_network(), tmp_path / "saved"
    digests = {"adapters": torch.arange(4)}
    config = make_config(network)
    save_checkpoint(folder, network, config, CARD, training_images=digests)
    assert torch.equal(read_training_images(folder)["adapters"], digests["adapters"])
    save_file({"adapters": torch.arange(3)}, folder / "training_images.safetensors")
    with pytest.raises(CheckpointError):
        read_training_images(folder)
    (folder / "training_images.safetensors").unlink()
    with pytest.raises(CheckpointError):
        read_training_images(folder)
    save_file(digests, folder / "training_images.safetensors")
    write_config(folder, config)
    assert read_training_images(folder) == {}


@pytest.mark.parametrize(
    ("group", "numbers"),
    [("backbone", LARGEST | {"layers": 2}), ("adapters", {"rank": 4096, "adapters": 1024})],
)
def test_large_numbers_allocate_nothing_that_the_files_do_not_hold(
    checkpoint_copy: Path, group: str, numbers: dict[str, int]
) -> None:
    load_checkpoint(checkpoint_copy)
    config_edited(lambda fields: fields[group]["settings"].update(numbers))(checkpoint_copy)
    before = peak_kilobytes()
    with pytest.raises(CheckpointError, match="shape"):
        load_checkpoint(checkpoint_copy)
    assert peak_kilobytes() - before < 200_000  # the numbers stand for more than 8 GB


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_folder_with_files_is_refused_and_left_unchanged(
    checkpoint_copy: Path, make_network, make_config
) -> None:
    before = contents(checkpoint_copy)
    network = make_network(seed=3)
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(checkpoint_copy, network, make_config(network), CARD)
    assert caught.value.path == checkpoint_copy
    assert contents(checkpoint_copy) == before
    assert [path.name for path in checkpoint_copy.parent.iterdir()] == [checkpoint_copy.name]


@pytest.mark.parametrize("missing", ["adapters.safetensors", EXPECTED_FILE, "config.json"])
def test_a_checkpoint_that_a_kill_left_incomplete_in_a_volume_has_no_config(
    make_network, make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    network, rename = make_network(), Path.rename

    def rename_or_stop(path: Path, target: Path) -> Path:
        if path.name == missing:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    monkeypatch.setattr(Path, "rename", rename_or_stop)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, network, make_config(network), CARD)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(tmp_path)


def test_an_empty_or_new_folder_is_accepted_and_parents_are_created(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    empty, nested = tmp_path / "empty", tmp_path / "parent" / "child" / "new"
    empty.mkdir()
    for folder in (empty, nested):
        save_checkpoint(folder, network, make_config(network), CARD)
        load_checkpoint(folder)
        assert list(folder.parent.glob(".*")) == []


def published_checkpoint(folder: Path, network, config, published: str, sha256: str) -> None:
    backbone = BackboneConfig(settings=config.backbone.settings, published=published, sha256=sha256)
    save_checkpoint(folder, network, config.model_copy(update={"backbone": backbone}), CARD)


@pytest.fixture
def published_folder(tiny_published, make_network, make_config, tmp_path: Path) -> Path:
    """A checkpoint on the published weights of `tiny_published`."""
    network = make_network()
    state = {k: v for k, v in tiny_published.state.items() if not k.startswith("heads.")}
    network.backbone.load_state_dict(state)
    folder = tmp_path / "on published"
    published_checkpoint(
        folder, network, make_config(network), tiny_published.name, tensors_sha256(state)
    )
    return folder


def test_a_published_backbone_is_loaded_from_torchs_cache_and_not_stored(
    published_folder: Path, tiny_published
) -> None:
    names = {path.name for path in published_folder.iterdir()}
    assert names == {"config.json", "adapters.safetensors", *COMMON_FILES}
    backbone = load_checkpoint(published_folder).network.backbone
    assert torch.equal(backbone.class_token, tiny_published.state["class_token"])


Damage = Callable[[Path], object]


def other_weights(published: Any) -> None:
    torch.save(published.state | {"class_token": torch.ones(1, 1, 16)}, published.file)


def downloads_other_weights(published: Any) -> None:
    published.file.unlink()
    published.source.parent.mkdir()
    torch.save(published.state | {"class_token": torch.ones(1, 1, 16)}, published.source)


@pytest.mark.parametrize(
    "damage",
    [
        other_weights,
        downloads_other_weights,
        lambda published: published.file.write_bytes(bytes(range(256)) * 40),
        lambda published: os.truncate(published.file, published.file.stat().st_size // 2),
        lambda published: published.file.unlink(),
    ],
)
def test_damaged_or_other_published_weights_are_a_checkpoint_error(
    published_folder: Path, tiny_published, damage: Callable[[Any], None]
) -> None:
    damage(tiny_published)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(published_folder)
    assert caught.value.path.parent == published_folder


def test_published_weights_of_another_shape_than_in_the_config_are_refused(
    published_folder: Path,
) -> None:
    edited(CONFIG, lambda c: c["backbone"]["settings"].update(mlp_width=48))(published_folder)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(published_folder)
    assert caught.value.path == published_folder / CONFIG


@pytest.fixture
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return load_checkpoint(checkpoint_folder)


@pytest.fixture
def known(checkpoint_folder: Path, checkpoint: Checkpoint):
    return read_known_answer(checkpoint_folder, checkpoint.config)


def test_the_stored_probabilities_are_those_that_the_model_predicts(
    checkpoint_folder: Path, known
) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    draws = [stored.draw for stored in known.expected]
    for draw, stored in zip(draws, known.expected, strict=True):
        predicted = model.predict(
            [checkpoint_folder / "known_answer.png"],
            draw.mode,
            None if draw.mode == "det" else draw.samples,
            draw.seed,
            sampler=draw.sampler,
        ).probabilities[0]
        assert stored.probabilities == pytest.approx(predicted.tolist(), abs=1e-5)
    assert {(draw.mode, draw.sampler) for draw in draws} == {
        ("det", "independent"), ("stoch", "independent"), ("stoch", "balanced")
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_intact_model_has_no_fault(checkpoint: Checkpoint, known, precision: str) -> None:
    settings = RuntimeSettings(precision=precision)
    runtime = TorchRuntime(checkpoint.network, torch.device("cpu"), settings)
    assert known.fault(predict_known_answer(runtime, known.pixels), precision) is None


@pytest.mark.parametrize("draw", range(3))
def test_the_probabilities_of_every_draw_are_checked(
    checkpoint: Checkpoint, known, draw: int
) -> None:
    outputs = predict_known_answer(checkpoint.network, known.pixels)
    outputs[draw] = outputs[draw].roll(1, dims=1)
    assert f"mode {known.expected[draw].draw.mode}" in str(known.fault(outputs, "float32"))


def test_non_finite_outputs_are_a_fault(checkpoint: Checkpoint, known) -> None:
    det, *stoch = predict_known_answer(checkpoint.network, known.pixels)
    broken = [torch.full_like(output, torch.nan) for output in stoch]
    assert "mode stoch: got NaN" in str(known.fault([det, *broken], "bfloat16"))


def without_a_class(fields: dict[str, Any]) -> None:
    for answer in fields["answers"]:
        first, *rest = answer["probabilities"]
        answer["probabilities"] = [first + rest[0], *rest[1:]]


def replaced_image(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "known_answer.png").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        edited(EXPECTED_FILE, lambda fields: fields.update(picture_sha256=digest))(folder)

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no probabilities": (lambda folder: (folder / EXPECTED_FILE).unlink(), "cannot be read"),
    "not UTF-8": (lambda folder: (folder / EXPECTED_FILE).write_bytes(b"\xff{}"), "JSON"),
    "missing key": (edited(EXPECTED_FILE, lambda f: f.pop("picture_sha256")), "picture_sha256"),
    "missing draw": (edited(EXPECTED_FILE, lambda f: f["answers"].pop()), "got other draws"),
    "other draw": (
        edited(EXPECTED_FILE, lambda f: f["answers"][1]["draw"].update(seed=1)),
        "got other draws",
    ),
    "sum below 1": (
        edited(EXPECTED_FILE, lambda f: f["answers"][0]["probabilities"].pop()),
        "sum to 1",
    ),
    "missing class": (edited(EXPECTED_FILE, without_a_class), "expected 3 probabilities, got 2"),
}
IMAGE_DAMAGES: dict[str, tuple[Damage, str]] = {
    "no image": (lambda folder: (folder / "known_answer.png").unlink(), "cannot be read"),
    "other image": (
        lambda folder: (folder / "known_answer.png").write_bytes(b"x"),
        "its SHA-256 differs",
    ),
    "not an image": (replaced_image(b"not an image"), "expected a JPEG, PNG or WebP image"),
}


@pytest.mark.parametrize(
    ("damage", "reason", "file"),
    [
        *((*damage, EXPECTED_FILE) for damage in DAMAGES.values()),
        *((*damage, "known_answer.png") for damage in IMAGE_DAMAGES.values()),
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


def test_a_full_disk_leaves_no_checkpoint_and_the_error_names_its_folder(
    make_network, make_config, tmp_path: Path
) -> None:
    network, folder = make_network(), tmp_path / "saved"
    with file_size_limit(2_000), pytest.raises(StorageError) as caught:
        save_checkpoint(folder, network, make_config(network), "# card\n")
    assert caught.value.path == folder
    assert list(tmp_path.iterdir()) == []
