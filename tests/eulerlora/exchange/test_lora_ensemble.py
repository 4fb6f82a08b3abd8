"""Import of LoRA-Ensemble's checkpoints, against torchvision with merged weights."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from torchvision.models import VisionTransformer

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.settings import Preprocessing
from tests.conftest import TINY_BACKBONE, TinyPublished
from tests.program import refusal, succeed

WIDTH, RANK = TINY_BACKBONE.width, 3
State = dict[str, Tensor]
PUBLISHED_NAME = "LoRA_Former_ViT_base_32_{}_members_HAM10000_settings_LoRA1.pt"


def ensemble_state(members: int, classes: int) -> State:
    """What the authors' code saves: their names and shapes, with random values."""
    generator = Generator().manual_seed(members)
    state = {}
    for block in range(TINY_BACKBONE.layers):
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            name = f"encoder_layer_{block}_{projection}"
            down = torch.randn(members, RANK, WIDTH, generator=generator)
            up = torch.randn(members, WIDTH, RANK, generator=generator)
            state |= {f"{name}_w_a.weight": 0.2 * down, f"{name}_w_b.weight": 0.2 * up}
    state["head_weight"] = torch.randn(members, classes, WIDTH, generator=generator)
    state["head_bias"] = torch.randn(members, classes, generator=generator)
    return {name: tensor.requires_grad_() for name, tensor in state.items()}


@torch.inference_mode()
def merged_logits(backbone: State, ensemble: State, member: int, images: Tensor) -> Tensor:
    """(n, classes) of torchvision's Vision Transformer with W0 + B A as its weights."""
    shape = TINY_BACKBONE
    model = VisionTransformer(
        shape.image_size, shape.patch_size, shape.layers, shape.heads, WIDTH, shape.mlp_width,
        num_classes=ensemble["head_bias"].shape[1],
    )  # fmt: skip
    heads = {f"heads.head.{part}": ensemble[f"head_{part}"][member] for part in ("weight", "bias")}
    state = {name: tensor.clone() for name, tensor in (backbone | heads).items()}
    for block in range(shape.layers):
        attention = f"encoder.layers.encoder_layer_{block}.self_attention"
        places = [state[f"{attention}.in_proj_weight"][i * WIDTH :][:WIDTH] for i in range(3)]
        places.append(state[f"{attention}.out_proj.weight"])
        for name, weight in zip(("q", "k", "v", "out"), places, strict=True):
            down, up = (
                ensemble[f"encoder_layer_{block}_{name}_proj_w_{x}.weight"][member] for x in "ab"
            )
            weight.add_(up @ down)
    model.load_state_dict(state)
    return model.eval()(images)


@pytest.mark.parametrize("members", [4, 16])
def test_a_checkpoint_of_lora_ensemble_has_the_logits_of_its_members(
    tiny_published: TinyPublished, images: Tensor, tmp_path: Path, members: int
) -> None:
    file, out = tmp_path / PUBLISHED_NAME.format(members), tmp_path / "out"
    ensemble = ensemble_state(members, 7)
    torch.save(ensemble, file)
    done = succeed("import", file, "--format", "lora-ensemble", "--out", out)
    assert f"{members} adapters of rank {RANK}, 7 classes" in done.out
    state = tiny_published.state
    expected = torch.stack(
        [merged_logits(state, ensemble, index, images) for index in range(members)], dim=1
    ).log_softmax(-1)
    actual = EulerLoRA.load(out, "cpu").predict(images)
    trajectories = torch.as_tensor(actual.trajectories).float()
    torch.testing.assert_close(trajectories.log(), expected, rtol=0, atol=1e-5)
    probabilities = torch.as_tensor(actual.probabilities).float()
    torch.testing.assert_close(probabilities, expected.exp().mean(1), rtol=0, atol=1e-5)
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.1
    config = load_checkpoint(out).config
    assert config.class_names == ("bkl", "nv", "df", "mel", "vasc", "bcc", "akiec")
    assert config.preprocessing == Preprocessing(size=32)
    assert config.adapters.settings.min_rank == RANK
    tiny_published.file.unlink()
    load_checkpoint(out)  # has its backbone


@pytest.mark.parametrize(("data_set", "classes"), [("CIFAR10", 10), ("CIFAR100", 100)])
def test_the_name_of_a_published_file_gives_the_classes_in_the_order_of_cifar(
    tiny_published: TinyPublished, tmp_path: Path, data_set: str, classes: int
) -> None:
    """The names of CIFAR are in alphabetical order."""
    file = tmp_path / f"LoRA_Former_ViT_base_32_1_members_{data_set}_settings_LoRA5.pt"
    torch.save(ensemble_state(1, classes), file)
    succeed("import", file, "--format", "lora-ensemble", "--out", tmp_path / "out")
    names = load_checkpoint(tmp_path / "out").config.class_names
    assert len(names) == classes
    assert list(names) == sorted(names)


def without(name: str) -> Callable[[State], object]:
    return lambda state: {key: tensor for key, tensor in state.items() if key != name}


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[State], object]:
    return lambda state: state | {name: change(state[name].detach())}


KEY = "encoder_layer_1_k_proj_w_{}.weight"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (without(KEY.format("b")), "encoder_layer_1_k_proj_w_b"),
        (without("encoder_layer_0_q_proj_w_a.weight"), "LoRA-Ensemble"),
        (without("head_bias"), "head_bias"),
        (without("head_weight"), "head_weight"),
        (changed(KEY.format("a"), lambda tensor: tensor[:, :2]), "(2, 3, 16), got (2, 2, 16)"),
        (changed(KEY.format("a"), lambda tensor: tensor[:1]), "(2, 3, 16), got (1, 3, 16)"),
        (changed(KEY.format("a"), lambda tensor: tensor / 0), "finite"),
        (changed(KEY.format("a"), lambda tensor: tensor.to(torch.int8)), "floating point"),
        (changed(KEY.format("a"), lambda tensor: tensor.to("meta")), "got none"),
        (changed(KEY.format("a"), lambda tensor: tensor.to_sparse()), "got none"),
        (changed("encoder_layer_0_q_proj_w_a.weight", lambda tensor: tensor[0]), "members, rank"),
        (changed("head_weight", lambda tensor: tensor[0]), "members, classes"),
        (lambda state: state | {"encoder_layer_2_q_proj_w_a.weight": torch.ones(2, 3, 16)}, "2_q"),
        (lambda state: {name: tensor[:0] for name, tensor in state.items()}, "adapters"),
        (lambda _: {"class_token": torch.ones(1, 1, 16)}, "class_token"),
        (lambda state: [*state.values()], "tensors by name"),  # of their explicit ensembles
        (lambda _: {}, "no tensors"),
        (lambda state: state | {"code": os.system}, "without code"),
    ],
)
def test_any_other_file_is_refused_and_nothing_is_written(
    tiny_published: TinyPublished, tmp_path: Path, change: Callable[[State], object], key: str
) -> None:
    file = tmp_path / "file.pt"
    torch.save(change(ensemble_state(2, 3)), file)
    arguments = ("import", file, "--format", "lora-ensemble", "--out", tmp_path / "out")
    assert key in refusal(*arguments)
    assert not (tmp_path / "out").exists()


def test_what_is_no_file_and_class_names_of_another_number_are_refused(
    tiny_published: TinyPublished, tmp_path: Path
) -> None:
    file, out = tmp_path / PUBLISHED_NAME.format(2), tmp_path / "out"
    torch.save(ensemble_state(2, 3), file)
    os.mkfifo(tmp_path / "pipe")
    options = ("--format", "lora-ensemble", "--out", out)
    assert "expected 3 class names, got 7" in refusal("import", file, *options)
    assert "got 2" in refusal("import", file, *options, "--classes", "a,b")
    assert "published weights" in refusal("import", file, *options, "--backbone", "ViT")
    for other in (tmp_path, tmp_path / "absent.pt", tmp_path / "pipe"):
        assert "got no regular file" in refusal("import", other, *options)
    assert "one file" in refusal("import", file, file, *options, status=2)
    assert not out.exists()
