"""Export of mode det to ONNX: one graph from resized images to mean probabilities.

The extra `onnx` installs what it needs. The written graph is run in ONNX Runtime and compared with
the checkpoint before the export is complete.
"""

from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.backbone import with_weights
from eulerlora.checkpoint.files import CARD, Checkpoint
from eulerlora.errors import NonFiniteError, SettingsError
from eulerlora.exchange.members import members, merged_state, readme
from eulerlora.images.preprocess import normalise

FILE = "model.onnx"
TOLERANCE = 1e-4
"""Largest accepted difference of a probability between ONNX Runtime and PyTorch."""
CHECKED_IMAGES = 3
USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(probabilities,) = session.run(None, {"images": images})
```

`images` is a float32 array (n, 3, size, size) in [0, 1]: the image after the resize of the
preprocessing below. The graph contains its mean, standard deviation and colour constancy."""


class MergedNetwork(nn.Module):
    """The members of a checkpoint in mode det, with merged weights.

    Maps images (n, 3, size, size) in [0, 1] to mean probabilities (n, classes).
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        network = checkpoint.network
        settings = network.backbone.settings.model_copy(update={"layer_scale": False})
        merged = members(checkpoint)
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

    Raises SettingsError if the extra is not installed and NonFiniteError if ONNX Runtime gives
    other probabilities.
    """
    _check_installed()
    network = MergedNetwork(checkpoint).eval().requires_grad_(False)
    size = checkpoint.config.preprocessing.size
    images = torch.rand(CHECKED_IMAGES, 3, size, size, generator=Generator().manual_seed(0))
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network,
        (images,),
        folder / FILE,
        input_names=["images"],
        output_names=["probabilities"],
        dynamo=True,
        dynamic_shapes={"images": {0: batch}},
        verbose=False,
    )
    difference = _difference(network, images, folder / FILE)
    if not difference <= TOLERANCE:
        raise NonFiniteError(
            f"ONNX Runtime: expected the checkpoint's probabilities within {TOLERANCE}, got a "
            f"difference of {difference:.2g}"
        )
    (folder / CARD).write_text(readme(checkpoint, "ONNX", USE), encoding="utf-8")
    return difference


@torch.inference_mode()
def _difference(network: MergedNetwork, images: Tensor, path: Path) -> float:
    """Returns the largest difference of a probability, for one image and for all."""
    import onnxruntime  # noqa: PLC0415 - an extra

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (images[:1], images):
        (actual,) = session.run(None, {"images": batch.numpy()})
        worst = max(worst, float((torch.from_numpy(actual) - network(batch)).abs().max()))
    return worst


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise SettingsError(
            "expected onnx, onnxruntime and onnxscript; pip install 'eulerlora[onnx]'"
        ) from error
