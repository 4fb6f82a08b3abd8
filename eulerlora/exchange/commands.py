"""The commands `eulerlora export` and `eulerlora import`. Importing this module is fast."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.nn.openmp import set_openmp_wait_policy

if TYPE_CHECKING:
    from eulerlora.exchange.peft_folders import TransformersVersion

PATH = click.Path(path_type=Path)
VERSIONS: "dict[str, TransformersVersion]" = {"4": 4, "5": 5}
FORMATS = ("peft", "torchvision", "onnx")


@click.command("export")
@click.argument("checkpoint", type=PATH)
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True)
@click.option("--out", required=True, type=PATH, help="A new folder.")
@click.option(
    "--transformers",
    "version",
    type=click.Choice(list(VERSIONS)),
    default="5",
    show_default=True,
    help="Version of transformers whose names the adapters have, for --format peft.",
)
def export_command(checkpoint: Path, format_: str, out: Path, version: str) -> None:
    """Write a checkpoint in mode det for another library.

    The stochastic mode cannot be expressed in any of the formats.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.checkpoint.files import check_free, load_checkpoint, new_folder  # noqa: PLC0415
    from eulerlora.exchange.onnx_models import export_onnx  # noqa: PLC0415
    from eulerlora.exchange.peft_folders import export_peft  # noqa: PLC0415
    from eulerlora.exchange.torchvision_models import export_torchvision  # noqa: PLC0415

    check_free(out)
    loaded = load_checkpoint(checkpoint)
    with new_folder(out) as partial:
        if format_ == "peft":
            export_peft(loaded, partial, VERSIONS[version])
        elif format_ == "torchvision":
            export_torchvision(loaded, partial)
        else:
            difference = export_onnx(loaded, partial)
            click.echo(f"largest difference of a probability in ONNX Runtime: {difference:.1e}")
    click.echo(f"mode det in {out}; see {out / 'README.md'}")


@click.command("import")
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--format", type=click.Choice(["peft"]), required=True, expose_value=False)
@click.option("--out", required=True, type=PATH, help="A new folder: the checkpoint.")
@click.option(
    "--backbone",
    metavar="SOURCE",
    help="Folder or repository of the backbone; that of the adapters by default.",
)
@click.option("--classes", help="Names, separated by commas; those of the backbone by default.")
@click.option("--name", default="imported", show_default=True, help="Name of the checkpoint.")
def import_command(
    folders: tuple[Path, ...],
    out: Path,
    backbone: str | None,
    classes: str | None,
    name: str,
) -> None:
    """Write a checkpoint with the LoRA adapters of PEFT FOLDERS as an ensemble.

    Ranks may differ, and PEFT's scaling becomes part of the weights.
    """
    set_openmp_wait_policy()
    from eulerlora.checkpoint.files import check_free  # noqa: PLC0415 - imports torch
    from eulerlora.exchange.peft_folders import import_peft  # noqa: PLC0415

    check_free(out)
    names = [part.strip() for part in classes.split(",")] if classes else []
    config = import_peft(folders, out, backbone, names, name)
    settings = config.adapters.settings
    click.echo(
        f"{settings.adapters} adapters of rank {settings.rank}, "
        f"{len(config.classes)} classes: {out}"
    )
    click.echo(
        "next, with one folder of pictures for each class in DIR: "
        f"eulerlora calibrate {out} --data DIR"
    )
