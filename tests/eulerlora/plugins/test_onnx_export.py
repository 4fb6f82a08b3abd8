"""ONNX graphs of checkpoints, which ONNX Runtime runs."""

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor

from tests.eulerlora.exchange.conftest import det_probabilities
from tests.program import refusal, run

ONNX_OPTIONS: dict[str, object] = {
    "layers": 1, "layer_scale": True, "registers": 2, "pre_norm": True, "pooling": "mean",
    "activation": "quick-gelu", "stem": "convolution",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [ONNX_OPTIONS, {"layers": 1, "layer_scale": True, "activation": "swiglu"}], ids=str
)
def test_onnx_runtime_gives_the_probabilities_of_mode_det(
    make_checkpoint, images: Tensor, tmp_path: Path, options: dict[str, object]
) -> None:
    checkpoint, out = make_checkpoint(**options), tmp_path / "onnx"
    done = run("export", checkpoint, "--format", "onnx", "--out", out)
    assert done.status == 0, done.err
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    expected = det_probabilities(checkpoint, images).mean(dim=1)
    for count in (1, 2, 3):  # the number of images is free
        (actual,) = session.run(None, {"images": images[:count].numpy()})
        torch.testing.assert_close(torch.from_numpy(actual), expected[:count], rtol=0, atol=1e-5)
    assert "stochastic mode cannot be expressed" in (out / "README.md").read_text()


def test_a_graph_with_other_probabilities_is_an_error(
    make_checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: None)
    monkeypatch.setattr("eulerlora.plugins.onnx_export._difference", lambda *_: float("nan"))
    refusal("export", make_checkpoint(), "--format", "onnx", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
