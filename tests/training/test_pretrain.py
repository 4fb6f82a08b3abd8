"""training.pretrain: a backbone from scratch."""

import shutil
from pathlib import Path

import pytest
import torch

from eulerlora.backbone import load_backbone, settings_of
from eulerlora.errors import DataError
from training.pretrain import Classifier, pretrain, state_file
from training.recipe import PretrainingRecipe

RECIPE = PretrainingRecipe.model_validate(
    {
        "name": "tiny-pretrain",
        "stored": "float16",
        "data": {"kind": "imagefolder"},
        "backbone": {
            "image_size": 32,
            "patch_size": 8,
            "layers": 1,
            "heads": 2,
            "width": 16,
            "mlp_width": 24,
        },
        "stages": [
            {
                "image_size": size,
                "epochs": epochs,
                "batch_size": 8,
                "learning_rate": 1e-2,
                "warmup_steps": 2,
                "workers": 0,
            }
            for size, epochs in ((16, 4), (32, 2))
        ],
    }
)


@pytest.fixture(scope="module")
def pretrained(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "out"
    data = tmp_path_factory.mktemp("labelled")
    for part in ("train", "test"):
        (data / part).symlink_to(image_folder / part)
    pretrain(RECIPE, data, out, torch.device("cpu"))
    return out / "backbone.safetensors"


def test_it_writes_a_backbone_of_the_recipe_s_shape_with_its_provenance(pretrained: Path) -> None:
    file = load_backbone(pretrained)
    assert settings_of(file.backbone) == RECIPE.backbone
    assert file.provenance["recipe"]["name"] == "tiny-pretrain"
    assert len(file.provenance["stages"]) == 2
    assert file.provenance["stages"][0]["steps"] == 4 * 8


def test_it_learns_what_it_is_shown(pretrained: Path) -> None:
    assert load_backbone(pretrained).provenance["test_accuracy"] > 0.8


def test_bad_images_are_skipped_and_recorded_where_that_is_wanted(
    image_folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for part in ("train", "test"):
        shutil.copytree(image_folder / part, data / part)
    (data / "train" / "red" / "03.png").write_bytes(b"broken")
    stages = (RECIPE.stages[-1].model_copy(update={"epochs": 1}),)
    recipe = RECIPE.model_copy(update={"stages": stages})
    with pytest.raises(DataError, match=r"train/red/03\.png"):
        pretrain(recipe, data, tmp_path / "out", torch.device("cpu"))
    pretrain(recipe, data, tmp_path / "out", torch.device("cpu"), skip_bad=True)
    file = load_backbone(tmp_path / "out" / "backbone.safetensors")
    assert file.provenance["skipped"] == {"count": 1, "names": ["train/red/03.png"]}


def test_a_larger_stage_starts_from_the_smaller_one_s_weights() -> None:
    small, large = Classifier(RECIPE, 16, 3), Classifier(RECIPE, 32, 3)
    large.take_weights(small)
    positions = "encoder.pos_embedding"
    ours, theirs = large.backbone.state_dict(), small.backbone.state_dict()
    assert ours[positions].shape == (1, 17, 16)
    assert theirs[positions].shape == (1, 5, 16)
    torch.testing.assert_close(ours[positions][:, 0], theirs[positions][:, 0])
    for name in theirs.keys() - {positions}:
        assert torch.equal(ours[name], theirs[name])
    assert torch.equal(large.head.weight, small.head.weight)


def test_an_interrupted_pretraining_continues_to_the_same_weights(
    image_folder: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for part in ("train", "test"):
        (data / part).symlink_to(image_folder / part)

    def crash(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("training.pretrain.save_backbone", crash)
        with pytest.raises(OSError, match="disk is full"):
            pretrain(RECIPE, data, out, torch.device("cpu"))
    state_file(out, 1).unlink()  # as if it had ended after the first stage
    pretrain(RECIPE, data, out, torch.device("cpu"), resume=True)
    ours, whole = (load_backbone(path) for path in (out / pretrained.name, pretrained))
    torch.testing.assert_close(
        ours.backbone.state_dict(), whole.backbone.state_dict(), atol=0, rtol=0
    )
    assert not state_file(out, 0).exists()
