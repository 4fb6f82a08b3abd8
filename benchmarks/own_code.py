"""The cost of EulerLoRA in PEFT: `python -m benchmarks.own_code`, on an idle machine.

ViT-B/32 with random weights and adapters of rank 20. The same number of trajectories from PEFT's
layers, which repeat the batch, and from the row engine, which shares the first block; and a pass
without sampling through EulerLoRA and through PEFT's LoRA. Runs alternate.
"""

import statistics
from copy import deepcopy
from typing import Any

import click
import torch
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.timing import Work, alternating_seconds
from eulerlora.classifier import adapt
from eulerlora.peft import EulerLoraConfig, sampling

TRAJECTORIES, RANK, CLASSES = 8, 20, 7
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
}


def ratio(first: Work, second: Work, repeats: int) -> str:
    """Returns the median of the paired ratios first / second, with their quartiles."""
    pairs = alternating_seconds([first, second], repeats, 1, torch.device("cpu"))
    ratios = [a / b for a, b in zip(*pairs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{median:.2f} | {low:.2f} to {high:.2f}"


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--repeats", type=click.IntRange(2), default=15, show_default=True)
@torch.inference_mode()
def main(small: bool, repeats: int) -> None:
    """Print a table of ratios."""
    options: dict[str, Any] = {"patch_size": 32, "num_labels": CLASSES}
    config: Any = ViTConfig(**options | (SMALL if small else {}))
    vit: Any = ViTForImageClassification(config)
    vit.eval()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    plain = get_peft_model(deepcopy(vit), LoraConfig(r=RANK, target_modules=targets)).eval()
    sampled = get_peft_model(deepcopy(vit), EulerLoraConfig(r=RANK)).eval()
    engine = adapt(vit, rank=RANK, adapters=1, classes=CLASSES).eval()
    click.echo("| ratio | images | median | quartiles |\n|---|---:|---:|---|")
    for count in (1, 8):
        images = torch.rand(count, 3, config.image_size, config.image_size)

        def rows(images: torch.Tensor = images) -> None:
            with sampling(sampled, samples=TRAJECTORIES, seed=0):
                sampled(pixel_values=images)

        def engine_rows(images: torch.Tensor = images) -> None:
            engine(images, mode="stoch", samples=TRAJECTORIES)

        def det(images: torch.Tensor = images) -> None:
            sampled(pixel_values=images)

        def lora(images: torch.Tensor = images) -> None:
            plain(pixel_values=images)

        click.echo(
            f"| {TRAJECTORIES} trajectories, PEFT to row engine | {count} | "
            f"{ratio(rows, engine_rows, repeats)} |"
        )
        click.echo(f"| det, EulerLoRA to LoRA of PEFT | {count} | {ratio(det, lora, repeats)} |")


if __name__ == "__main__":
    main()
