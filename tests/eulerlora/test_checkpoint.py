"""Checkpoint folders: what comes back, what is refused, and what a failed save leaves."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from eulerlora.checkpoint import (
    check_free,
    load_checkpoint,
    read_config,
    revision_of,
    save_checkpoint,
    stored_revision,
    write_config,
)
from eulerlora.config import BackboneConfig
from eulerlora.errors import CheckpointError
from eulerlora.inference import predict_rows
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.settings import AdapterSettings, BackboneSettings, Draw
from eulerlora.vision_transformer import AdaptedVisionTransformer

Damage = Callable[[Path], object]
CARD = "# A card, größer than ASCII\n"
ALWAYS = {"README.md", "known_answer.png", "known_answer.json"}


def answers(network: AdaptedVisionTransformer) -> Tensor:
    """Log-probabilities of two random images, one det and one stoch."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = [Draw(), Draw(mode="stoch", samples=3, seed=1)]
    return torch.cat(predict_rows(network, images, draws))


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_float32_weights_give_bitwise_the_same_probabilities_after_a_round_trip(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    config = make_config(network)
    save_checkpoint(tmp_path / "saved", network, config, CARD)
    loaded = load_checkpoint(tmp_path / "saved")
    assert loaded.config == config
    assert torch.equal(answers(loaded.network), answers(network))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_storage_gives_the_probabilities_of_the_rounded_weights(
    make_network, make_config, tmp_path: Path, dtype: torch.dtype
) -> None:
    network = make_network()
    save_checkpoint(tmp_path / "saved", network, make_config(network, dtype), CARD, dtype)
    loaded = load_checkpoint(tmp_path / "saved").network
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    unrounded = answers(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.to(dtype))
    assert torch.equal(answers(loaded), answers(network))
    assert not torch.equal(answers(loaded), unrounded)


def test_a_loaded_network_is_ready_to_answer_on_the_cpu(checkpoint_folder: Path) -> None:
    network = load_checkpoint(checkpoint_folder).network
    assert not network.training
    assert {p.device.type for p in network.parameters()} == {"cpu"}
    assert not any(p.requires_grad for p in network.backbone.parameters())


def test_a_loaded_network_keeps_its_weights_when_its_files_change(checkpoint_copy: Path) -> None:
    network = load_checkpoint(checkpoint_copy).network
    expected = answers(network)
    for file in checkpoint_copy.glob("*.safetensors"):
        with file.open("r+b") as opened:  # in place, not as another file of that name
            opened.seek(-1000, os.SEEK_END)
            opened.write(bytes(1000))
    assert torch.equal(answers(network), expected)


def test_a_checkpoint_is_these_files(checkpoint_folder: Path) -> None:
    names = {each.name for each in checkpoint_folder.iterdir()}
    assert names == {"config.json", "adapters.safetensors", "backbone.safetensors", *ALWAYS}


def test_config_and_card_are_utf_8(make_network, make_config, tmp_path: Path) -> None:
    network = make_network()
    config = make_config(network, provenance={"data": "Größe"})
    save_checkpoint(tmp_path / "saved", network, config, CARD)
    assert (tmp_path / "saved" / "README.md").read_bytes() == CARD.encode()
    text = (tmp_path / "saved" / "config.json").read_bytes().decode()
    assert json.loads(text)["provenance"] == {"data": "Größe"}


def test_the_revision_is_the_digest_of_the_config(checkpoint_copy: Path) -> None:
    loaded = load_checkpoint(checkpoint_copy)
    text = (checkpoint_copy / "config.json").read_bytes()
    assert loaded.revision == "sha256:" + hashlib.sha256(text).hexdigest()
    assert loaded.revision == revision_of(read_config(checkpoint_copy))
    assert loaded.revision == stored_revision(checkpoint_copy)
    write_config(checkpoint_copy, loaded.config.model_copy(update={"thresholds": ()}))
    assert load_checkpoint(checkpoint_copy).revision != loaded.revision


@pytest.mark.parametrize("mask", [0o022, 0o077], ids=oct)
def test_all_files_can_be_read_by_other_users(
    make_network, make_config, tmp_path: Path, mask: int
) -> None:
    network = make_network()
    with umask(mask):
        save_checkpoint(tmp_path / "saved", network, make_config(network), CARD)
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "saved").iterdir()}
    assert modes == dict.fromkeys(modes, oct(0o644))
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o755


def test_a_rewritten_config_replaces_the_old_one_and_touches_nothing_else(
    checkpoint_copy: Path,
) -> None:
    before = contents(checkpoint_copy)
    config = load_checkpoint(checkpoint_copy).config
    write_config(checkpoint_copy, config.model_copy(update={"name": "renamed"}))
    after = contents(checkpoint_copy)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"config.json"}
    assert load_checkpoint(checkpoint_copy).config.name == "renamed"


def write(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Changes config.json as a person with an editor would."""

    def damage(folder: Path) -> None:
        fields = json.loads((folder / "config.json").read_text())
        change(fields)
        (folder / "config.json").write_text(json.dumps(fields))

    return damage


def repacked(name: str, change: Callable[[dict[str, Tensor]], object]) -> Damage:
    """Changes the tensors of a file and leaves the digests in config.json as they are."""

    def damage(folder: Path) -> None:
        tensors = load((folder / name).read_bytes())
        change(tensors)
        save_file(tensors, folder / name)

    return damage


def truncated(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def pickled(name: str) -> Damage:
    return lambda folder: torch.save(load((folder / name).read_bytes()), folder / name)


ADAPTERS, BACKBONE, CONFIG = "adapters.safetensors", "backbone.safetensors", "config.json"
NORM = "encoder.ln.weight"


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (lambda folder: (folder / CONFIG).unlink(), CONFIG, "cannot be read"),
        (shutil.rmtree, CONFIG, "cannot be read"),
        (write(CONFIG, b""), CONFIG, "JSON"),
        (write(CONFIG, b'{"name": '), CONFIG, "JSON"),
        (write(CONFIG, b"\xff\xfe{}"), CONFIG, "JSON"),
        (write(CONFIG, b"[]"), CONFIG, "object"),
        (edited(lambda c: c.update(alpha=1)), CONFIG, "alpha: Extra"),
        (edited(lambda c: c["adapters"]["settings"].update(alpha=1)), CONFIG, "settings.alpha"),
        (edited(lambda c: c["classes"].append(c["classes"][0])), CONFIG, "two classes"),
        (edited(lambda c: c.pop("provenance")), CONFIG, "provenance: Field required"),
        (edited(lambda c: c["backbone"].update(published="ResNet.V1")), CONFIG, "ResNet.V1"),
        (lambda folder: (folder / ADAPTERS).unlink(), ADAPTERS, "not a readable"),
        (truncated(ADAPTERS), ADAPTERS, "not a readable"),
        (write(ADAPTERS, bytes(range(256)) * 8), ADAPTERS, "not a readable"),
        (pickled(ADAPTERS), ADAPTERS, "not a readable"),
        (repacked(ADAPTERS, lambda t: t.pop("heads.bias")), ADAPTERS, "heads.bias is missing"),
        (repacked(ADAPTERS, lambda t: t.update(x=torch.ones(1))), ADAPTERS, "x does not belong"),
        (
            repacked(ADAPTERS, lambda t: t.update({"heads.bias": torch.ones(2, 4)})),
            ADAPTERS,
            r"heads.bias has shape \[2, 4\], wanted \[2, 3\]",
        ),
        (
            repacked(ADAPTERS, lambda t: t.update({"heads.bias": torch.ones(2, 3).int()})),
            ADAPTERS,
            "heads.bias has dtype torch.int32",
        ),
        (repacked(ADAPTERS, lambda t: t["heads.bias"].fill_(torch.nan)), ADAPTERS, "has NaN"),
        (repacked(ADAPTERS, lambda t: t["heads.bias"].add_(0.01)), ADAPTERS, "SHA-256"),
        (edited(lambda c: c["adapters"].update(sha256="0" * 64)), ADAPTERS, "SHA-256"),
        (edited(lambda c: c["adapters"]["settings"].update(rank=5)), ADAPTERS, "has shape"),
        (edited(lambda c: c["adapters"]["settings"].update(adapters=3)), ADAPTERS, "has shape"),
        (edited(lambda c: c["classes"].pop()), ADAPTERS, "heads.*has shape"),
        (lambda folder: (folder / BACKBONE).unlink(), BACKBONE, "not a readable"),
        (truncated(BACKBONE), BACKBONE, "not a readable"),
        (pickled(BACKBONE), BACKBONE, "not a readable"),
        (repacked(BACKBONE, lambda t: t.pop(NORM)), BACKBONE, f"{NORM} is missing"),
        (repacked(BACKBONE, lambda t: t[NORM].fill_(torch.inf)), BACKBONE, "infinite"),
        (repacked(BACKBONE, lambda t: t[NORM].mul_(1.001)), BACKBONE, "SHA-256"),
        (edited(lambda c: c["backbone"].update(sha256="0" * 64)), BACKBONE, "SHA-256"),
        (edited(lambda c: c["backbone"]["settings"].update(layers=3)), BACKBONE, "is missing"),
        (edited(lambda c: c["backbone"]["settings"].update(layers=1)), BACKBONE, "not belong"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_an_error_that_names_the_file(
    checkpoint_copy: Path, damage: Damage, file: str, reason: str
) -> None:
    load_checkpoint(checkpoint_copy)
    damage(checkpoint_copy)
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_checkpoint(checkpoint_copy)
    assert caught.value.path == checkpoint_copy / file
    assert str(checkpoint_copy / file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width", [16, 24])
def test_the_file_of_another_backbone_is_refused(
    checkpoint_copy: Path, make_network, make_config, tmp_path: Path, make_backbone, width: int
) -> None:
    settings = BackboneSettings(
        image_size=32, patch_size=8, layers=2, heads=2, width=width, mlp_width=24
    )
    other = make_network(backbone=make_backbone(settings, seed=9))
    save_checkpoint(tmp_path / "other", other, make_config(other), CARD)
    shutil.copy(tmp_path / "other" / BACKBONE, checkpoint_copy)
    with pytest.raises(CheckpointError, match="SHA-256" if width == 16 else "has shape") as caught:
        load_checkpoint(checkpoint_copy)
    assert caught.value.path == checkpoint_copy / BACKBONE


def test_saving_over_a_folder_that_holds_something_is_refused_and_leaves_it_as_it_was(
    checkpoint_copy: Path, make_network, make_config
) -> None:
    before = contents(checkpoint_copy)
    network = make_network(seed=3)
    with pytest.raises(CheckpointError, match="already holds something") as caught:
        save_checkpoint(checkpoint_copy, network, make_config(network), CARD)
    assert caught.value.path == checkpoint_copy
    assert contents(checkpoint_copy) == before
    assert [each.name for each in checkpoint_copy.parent.iterdir()] == [checkpoint_copy.name]


def test_a_file_in_the_folders_place_is_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "taken"
    place.write_text("mine")
    with pytest.raises(CheckpointError, match="already holds something"):
        check_free(place)


def test_an_empty_or_new_folder_is_free_and_parents_are_made(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    empty, deep = tmp_path / "empty", tmp_path / "some" / "where" / "new"
    empty.mkdir()
    for folder in (empty, deep):
        check_free(folder)
        save_checkpoint(folder, network, make_config(network), CARD)
        load_checkpoint(folder)
        assert list(folder.parent.glob(".*")) == []


@pytest.mark.parametrize("card", [b"not text", "a lone surrogate \udc80"])
def test_a_save_that_fails_leaves_nothing_behind(
    make_network, make_config, tmp_path: Path, card: Any
) -> None:
    network = make_network()
    with pytest.raises((TypeError, UnicodeEncodeError)):
        save_checkpoint(tmp_path / "saved", network, make_config(network), card)
    assert list(tmp_path.iterdir()) == []


def test_a_save_to_an_impossible_place_leaves_everything_as_it_was(
    make_network, make_config, tmp_path: Path
) -> None:
    network = make_network()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        save_checkpoint(tmp_path / "file" / "saved", network, make_config(network), CARD)
    assert contents(tmp_path) == {"file": b"mine"}


def published_checkpoint(folder: Path, network, config, published: str, sha256: str) -> None:
    backbone = BackboneConfig(settings=config.backbone.settings, published=published, sha256=sha256)
    save_checkpoint(folder, network, config.model_copy(update={"backbone": backbone}), CARD)


@pytest.fixture
def published_folder(tiny_published, make_network, make_config, tmp_path: Path) -> Path:
    """A checkpoint on weights that torchvision publishes, those of `tiny_published`."""
    network = make_network()
    kept = {k: v for k, v in tiny_published.state.items() if not k.startswith("heads.")}
    network.backbone.load_state_dict(kept)
    folder = tmp_path / "on published"
    published_checkpoint(
        folder, network, make_config(network), tiny_published.name, tensors_sha256(kept)
    )
    return folder


def test_a_published_backbone_is_not_stored_and_comes_from_torchs_cache(
    published_folder: Path, tiny_published
) -> None:
    names = {each.name for each in published_folder.iterdir()}
    assert names == {"config.json", "adapters.safetensors", *ALWAYS}
    backbone = load_checkpoint(published_folder).network.backbone
    assert torch.equal(backbone.class_token, tiny_published.state["class_token"])


def test_other_weights_under_a_published_name_are_refused(
    published_folder: Path, tiny_published
) -> None:
    torch.save(tiny_published.state | {"class_token": torch.ones(1, 1, 16)}, tiny_published.file)
    with pytest.raises(CheckpointError, match=r"SHA-256|hash") as caught:
        load_checkpoint(published_folder)
    assert caught.value.path.parent == published_folder


def test_published_weights_of_another_shape_than_the_config_says_are_refused(
    published_folder: Path,
) -> None:
    edited(lambda c: c["backbone"]["settings"].update(mlp_width=48))(published_folder)
    with pytest.raises(CheckpointError, match=r"backbone\.settings are not those of"):
        load_checkpoint(published_folder)


def test_a_damaged_file_in_torchs_cache_is_a_checkpoint_error(
    published_folder: Path, tiny_published
) -> None:
    tiny_published.file.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(CheckpointError, match="backbone") as caught:
        load_checkpoint(published_folder)
    assert caught.value.path == published_folder / CONFIG


def test_a_truncated_file_in_torchs_cache_is_a_checkpoint_error(
    published_folder: Path, tiny_published
) -> None:
    os.truncate(tiny_published.file, tiny_published.file.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="backbone"):
        load_checkpoint(published_folder)


def test_published_weights_that_cannot_be_had_are_a_checkpoint_error(
    published_folder: Path, tiny_published
) -> None:
    tiny_published.file.unlink()
    with pytest.raises(CheckpointError, match="backbone") as caught:
        load_checkpoint(published_folder)
    assert caught.value.path == published_folder / CONFIG


def test_a_download_that_is_not_the_published_file_is_a_checkpoint_error(
    published_folder: Path, tiny_published
) -> None:
    tiny_published.file.unlink()
    tiny_published.source.parent.mkdir()
    torch.save(tiny_published.state | {"class_token": torch.ones(1, 1, 16)}, tiny_published.source)
    with pytest.raises(CheckpointError, match="hash"):
        load_checkpoint(published_folder)
    assert not tiny_published.file.exists()


def test_the_sampling_law_of_a_checkpoint_is_the_one_in_its_config(
    make_network, make_config, tmp_path: Path
) -> None:
    settings = AdapterSettings(adapters=1, rank=4, min_rank=3, steps=5, scale=0.25)
    network = make_network(settings)
    save_checkpoint(tmp_path / "saved", network, make_config(network), CARD)
    assert load_checkpoint(tmp_path / "saved").network.settings == settings
