"""Export of mode det to ONNX: one graph from resized images to mean probabilities.

ONNX Runtime runs the graph for a comparison with the checkpoint before the export is complete.
"""

from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.checkpoint.weights import CARD_FILE, with_weights
from eulerlora.exchange.exporting import export_readme, exported_adapters, merged_state
from eulerlora.images.preprocess import normalise
from eulerlora_contract.errors import NonFiniteError, SettingsError
from eulerlora_contract.output_files import write_text

_ONNX_FILE = "model.onnx"
_MAX_DIFFERENCE = 1e-4
"""Largest accepted difference of a probability between ONNX Runtime and PyTorch."""
_CHECKED_IMAGES = 3
_ONNX_USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(probabilities,) = session.run(None, {"images": images})
```

`images` is a float32 array (n, 3, size, size) in [0, 1]: the image after the resize of the
preprocessing below. The graph contains its mean, standard deviation and colour constancy."""


class _MergedNetwork(nn.Module):
    """The members of a checkpoint in mode det, with merged weights.

    Maps images (n, 3, size, size) in [0, 1] to mean probabilities (n, classes).
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        network = checkpoint.network
        settings = network.backbone.settings.model_copy(update={"layer_scale": False})
        merged = exported_adapters(checkpoint)
        self.preprocessing = network.preprocessing
        self.backbones = nn.ModuleList(
            with_weights(settings, merged_state(checkpoint, member)) for member in merged
        )
        self.heads = nn.ModuleList(member.head for member in merged)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, size, size) in [0, 1]."""
        inputs = normalise(images, self.preprocessing)
        pairs = zip(self.backbones, self.heads, strict=True)
        probabilities = [head(backbone(inputs)).softmax(dim=-1) for backbone, head in pairs]
        return torch.stack(probabilities).mean(dim=0)


def export_onnx(checkpoint: Checkpoint, folder: Path) -> float:
    """Writes `model.onnx` and a README; returns the largest difference from the checkpoint.

    Raises:
        SettingsError: If the extra is not installed.
        NonFiniteError: If ONNX Runtime gives other probabilities.
    """
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise SettingsError(
            "expected onnx, onnxruntime and onnxscript; pip install 'eulerlora[onnx]'"
        ) from error
    network = _MergedNetwork(checkpoint).eval().requires_grad_(False)
    size = checkpoint.config.preprocessing.size
    images = torch.rand(_CHECKED_IMAGES, 3, size, size, generator=Generator().manual_seed(0))
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network,
        (images,),
        folder / _ONNX_FILE,
        input_names=["images"],
        output_names=["probabilities"],
        dynamo=True,
        dynamic_shapes={"images": {0: batch}},
        verbose=False,
    )
    difference = _difference(network, images, folder / _ONNX_FILE)
    if not difference <= _MAX_DIFFERENCE:
        raise NonFiniteError(
            f"ONNX Runtime: expected the checkpoint's probabilities within {_MAX_DIFFERENCE}, got "
            f"a difference of {difference:.2g}"
        )
    write_text(folder / CARD_FILE, export_readme(checkpoint, "ONNX", _ONNX_USE))
    return difference


@torch.inference_mode()
def _difference(network: _MergedNetwork, images: Tensor, path: Path) -> float:
    import onnxruntime  # noqa: PLC0415 - an extra

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (images[:1], images):
        (actual,) = session.run(None, {"images": batch.numpy()})
        worst = max(worst, float((torch.from_numpy(actual) - network(batch)).abs().max()))
    return worst
