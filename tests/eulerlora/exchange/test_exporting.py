"""Exports to torchvision and ONNX, loaded as their READMEs say."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.vision_transformer import ConvStemConfig, VisionTransformer

from tests.eulerlora.exchange.conftest import det_probabilities
from tests.markdown import code_blocks
from tests.program import run

OPTIONS = [{}, {"layer_scale": True, "norm_epsilon": 1e-4}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_readme_gives_the_probabilities_of_mode_det(
    make_checkpoint,
    images: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
) -> None:
    checkpoint, out = make_checkpoint(**options), tmp_path / "torchvision"
    done = run("export", checkpoint, "--format", "torchvision", "--out", out)
    assert done.status == 0, done.err
    blocks = code_blocks((out / "README.md").read_text())
    (program,) = (block.code for block in blocks if block.language == "python")
    config = json.loads((out / "config.json").read_text())  # the README says so
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    names = {"images": (images - mean) / std}
    monkeypatch.chdir(out)
    with torch.inference_mode():
        exec(program, names)
    expected = det_probabilities(checkpoint, images).mean(dim=1)
    torch.testing.assert_close(names["probabilities"], expected, rtol=0, atol=1e-5)


def test_a_convolutional_stem_is_exported_with_its_channels(
    make_checkpoint, images: Tensor, tmp_path: Path
) -> None:
    folder, out = make_checkpoint(stem="convolution"), tmp_path / "out"
    assert run("export", folder, "--format", "torchvision", "--out", out).status == 0
    assert re.search(r"norm: 8, 8, 16\.", (out / "README.md").read_text())
    config = json.loads((out / "config.json").read_text())
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    actual = []
    for member in range(config["members"]):
        model = VisionTransformer(
            **config["arguments"],
            norm_layer=partial(nn.LayerNorm, eps=config["norm_epsilon"]),
            conv_stem_configs=[
                ConvStemConfig(width, 3, 2, norm_layer=None) for width in (8, 8, 16)
            ],
        )
        model.load_state_dict(load_file(out / f"member_{member}.safetensors"))
        with torch.inference_mode():
            actual.append(model.eval()((images - mean) / std).softmax(dim=-1))
    expected = det_probabilities(folder, images)
    torch.testing.assert_close(torch.stack(actual, dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("format_", "options", "others"),
    [
        ("torchvision", {"registers": 1}, "onnx"),
        ("peft", {"stem": "convolution"}, "torchvision or onnx"),
        ("peft", {"registers": 2}, "onnx"),
        ("peft", {"pre_norm": True}, "onnx"),
        ("peft", {"pooling": "mean"}, "onnx"),
    ],
    ids=str,
)
def test_an_option_that_a_format_does_not_have_is_refused(
    make_checkpoint, tmp_path: Path, format_: str, options: dict[str, object], others: str
) -> None:
    out = tmp_path / "out"
    done = run("export", make_checkpoint(**options), "--format", format_, "--out", out)
    (option,) = options
    assert (done.status, f"{option}=" in done.err) == (1, True)
    assert done.err.rstrip().endswith(f"--format {others}")
    assert not out.exists()
