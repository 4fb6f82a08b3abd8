"""Models that gave their known answer: loading, sharing a backbone, and newer revisions."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint import read_config, save_checkpoint, write_config
from eulerlora.errors import CheckpointError
from eulerlora.known_answer import answers_now
from eulerlora.model import EulerLoRA
from eulerlora.settings import PLAIN, RuntimeSettings
from service.commands import EMBEDDED
from service.lifecycle.loading import CheckedModel, load_checked, newer_revision
from tests.damaged_checkpoints import DAMAGES

CPU = torch.device("cpu")
load = partial(load_checked, device=CPU, runtime=PLAIN)

Save = Callable[..., Path]


@pytest.fixture
def save(make_network, make_config, make_backbone, tmp_path: Path) -> Save:
    """(name, adapters' seed, backbone's seed) -> the folder of a checkpoint."""

    def checkpoint(name: str, seed: int, backbone_seed: int = 0, folder: str = "") -> Path:
        network = make_network(seed=seed, backbone=make_backbone(seed=backbone_seed))
        place = tmp_path / (folder or name)
        save_checkpoint(place, network, make_config(network, name=name), "# card\n")
        return place

    return checkpoint


def frozen(model: EulerLoRA) -> list[torch.nn.Parameter]:
    return list(model.network.backbone.parameters())


def right(checked: CheckedModel) -> bool:
    given = answers_now(checked.model.runtime, checked.known.pixels)
    return checked.known.fault(given, checked.precision) is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_checkpoints_on_one_backbone_hold_its_weights_once(save: Save, precision) -> None:
    runtime = RuntimeSettings(precision=precision)
    first = load_checked(save("first", seed=1), (), CPU, runtime)
    alone = load_checked(save("second", seed=2), (), CPU, runtime)
    shared = load_checked(alone.folder, [first.model], CPU, runtime)
    pairs = list(zip(frozen(first.model), frozen(shared.model), frozen(alone.model), strict=True))
    for one, other, own in pairs:
        assert one.data_ptr() == other.data_ptr() != own.data_ptr()
        assert torch.equal(one, own)
        assert one.dtype == own.dtype
    assert (torch.bfloat16 in {one.dtype for one, _, _ in pairs}) == (precision == "bfloat16")
    for model in (shared, alone):
        assert right(model)
    assert torch.equal(
        *(answers_now(each.model.runtime, each.known.pixels)[1] for each in (shared, alone))
    )
    assert right(first)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_embedded_checkpoint_gives_its_known_answer(precision) -> None:
    embedded = load_checked(EMBEDDED, (), CPU, RuntimeSettings(precision=precision))
    assert right(embedded)


def test_checkpoints_on_different_backbones_share_nothing(save: Save) -> None:
    first = load(save("first", seed=1), ())
    other = load(save("second", seed=1, backbone_seed=5), [first.model])
    theirs = {each.data_ptr() for each in frozen(first.model)}
    assert theirs.isdisjoint(each.data_ptr() for each in frozen(other.model))


def test_a_model_shares_with_whichever_has_its_backbone(save: Save) -> None:
    others = [load(save(f"b{seed}", seed=1, backbone_seed=seed), ()).model for seed in (3, 4)]
    found = load(save("new", seed=2, backbone_seed=4), others).model
    assert frozen(found)[0].data_ptr() == frozen(others[1])[0].data_ptr()


def test_a_backbone_file_is_checked_even_where_its_weights_are_there_already(save: Save) -> None:
    first = load(save("first", seed=1), ())
    second = save("second", seed=2)
    DAMAGES["another backbone"].apply(second)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(second, [first.model])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_backbone_on_a_gpu_is_held_once(save: Save, precision) -> None:
    device, runtime = torch.device("cuda"), RuntimeSettings(precision=precision)
    first = load_checked(save("first", seed=1), (), device, runtime)
    second = load_checked(save("second", seed=2), [first.model], device, runtime)
    for one, other in zip(frozen(first.model), frozen(second.model), strict=True):
        assert one.device.type == "cuda"
        assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_with_its_file_and_the_reason(
    checkpoint_copy: Path, damage: str
) -> None:
    file, reason, apply = DAMAGES[damage]
    apply(checkpoint_copy)
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint_copy, ())
    assert caught.value.path == checkpoint_copy / file
    assert reason in caught.value.reason


def test_an_unchanged_folder_has_no_newer_revision(checkpoint_copy: Path) -> None:
    current = load(checkpoint_copy, ())
    never = lambda *_: pytest.fail("it was loaded again")  # noqa: E731
    assert newer_revision(current, never, ()) is None


def test_a_rewritten_config_is_a_newer_revision_on_the_same_weights(checkpoint_copy: Path) -> None:
    current = load(checkpoint_copy, ())
    config = read_config(checkpoint_copy).model_copy(update={"thresholds": ()})
    write_config(checkpoint_copy, config)
    newer = newer_revision(current, load, [current.model])
    assert newer is not None
    assert newer.model.revision != current.model.revision
    assert newer.model.config.thresholds == ()
    assert frozen(newer.model)[0].data_ptr() == frozen(current.model)[0].data_ptr()


def test_a_folder_that_was_replaced_by_renaming_is_a_newer_revision(save: Save) -> None:
    current = load(save("model", seed=1), ())
    new = save("model", seed=2, folder="new")
    current.folder.rename(current.folder.with_name("old"))
    new.rename(current.folder)
    newer = newer_revision(current, load, [current.model])
    assert newer is not None
    assert right(newer)
    assert not torch.equal(newer.model.network.heads.bias, current.model.network.heads.bias)


def test_a_model_of_another_name_cannot_take_the_place(save: Save) -> None:
    current = load(save("model", seed=1), ())
    shutil.rmtree(current.folder)
    save("other", seed=2, folder="model")
    with pytest.raises(CheckpointError, match="now called other; wanted model") as caught:
        newer_revision(current, load, ())
    assert caught.value.path == current.folder / "config.json"


def test_a_folder_that_holds_an_old_and_a_new_revision_is_refused(save: Save) -> None:
    current = load(save("model", seed=1), ())
    new = save("model", seed=2, folder="new")
    shutil.copy(new / "config.json", current.folder)  # its adapters are still being written
    with pytest.raises(CheckpointError, match="SHA-256"):
        newer_revision(current, load, ())
