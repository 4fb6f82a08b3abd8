"""The cost of EulerLoRA in PEFT: `python -m benchmarks.own_code`, on an idle machine.

ViT-B/32 with random weights and adapters of rank 20. The same number of trajectories from PEFT's
layers, which repeat the batch, and from the row engine, which shares the first block; and a pass
without sampling through EulerLoRA and through PEFT's LoRA. Runs alternate.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import click
import torch
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.results import Result, report
from benchmarks.workload import FULL, Plan
from eulerlora.classifier import adapt
from eulerlora.peft import EulerLoraConfig, sampling

TRAJECTORIES, RANK, CLASSES = 8, 20, 7
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--repeats", type=click.IntRange(2), default=15, show_default=True)
@torch.inference_mode()
def main(small: bool, repeats: int) -> None:
    """Print a table of ratios."""
    report(
        comparisons({"patch_size": 32, "num_labels": CLASSES} | (SMALL if small else {}), repeats)
    )


def comparisons(options: dict[str, Any], repeats: int) -> Iterator[Result]:
    """Compares one and eight images. options: of the ViT."""
    config: Any = ViTConfig(**options)
    vit: Any = ViTForImageClassification(config)
    vit.eval()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    plain = get_peft_model(deepcopy(vit), LoraConfig(r=RANK, target_modules=targets)).eval()
    sampled = get_peft_model(deepcopy(vit), EulerLoraConfig(r=RANK)).eval()
    engine = adapt(vit, rank=RANK, adapters=1, classes=CLASSES).eval()
    plan = Plan(FULL, torch.device("cpu"))
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

        yield plan.comparison(
            f"{TRAJECTORIES} trajectories, {count} images",
            ("EulerLoRA in PEFT", rows),
            ("the row engine", engine_rows),
            repeats=repeats,
        )
        yield plan.comparison(
            f"det, {count} images",
            ("EulerLoRA in PEFT", det),
            ("LoRA of PEFT", lora),
            repeats=repeats,
        )


if __name__ == "__main__":
    main()
