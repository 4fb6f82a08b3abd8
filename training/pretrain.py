"""Supervised pretraining of a backbone from scratch, stage by stage."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.models.vision_transformer import interpolate_embeddings

from eulerlora.backbone import build_backbone, save_backbone
from training.augment import Transform, crop_and_flip, evaluation_view, training_view
from training.datasets import LabelledImage, Pictures, read_dataset
from training.loop import fit, progress
from training.provenance import provenance_of
from training.recipe import PretrainingRecipe, PretrainingStage


class Classifier(nn.Module):
    """A backbone with one linear head on its class token's features."""

    def __init__(self, recipe: PretrainingRecipe, image_size: int, classes: int) -> None:
        super().__init__()
        self.backbone = build_backbone(
            recipe.backbone.model_copy(update={"image_size": image_size})
        )
        self.head = nn.Linear(recipe.backbone.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, image_size, image_size). Returns logits (n, classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def take_weights(self, smaller: "Classifier") -> None:
        """Continues from a classifier of another image size, positions interpolated."""
        backbone = self.backbone
        state = interpolate_embeddings(
            backbone.image_size, backbone.patch_size, smaller.backbone.state_dict()
        )
        backbone.load_state_dict(state)
        self.head.load_state_dict(smaller.head.state_dict())


def pretrain(recipe: PretrainingRecipe, data: Path, out: Path, device: torch.device) -> None:
    """Trains the recipe's backbone and writes `out/backbone.safetensors`.

    The file's metadata holds the recipe, the data set, the accuracy on its test part and the time.
    """
    images = read_dataset(recipe.data, data)
    train = [*images.parts["train"], *images.parts["calibration"]]
    torch.manual_seed(recipe.seed)  # torchvision's own initialisation takes no generator
    previous: Classifier | None = None
    stages = []
    for index, stage in enumerate(recipe.stages):
        model = Classifier(recipe, stage.image_size, len(images.classes)).to(device)
        if previous is not None:
            model.take_weights(previous)
        stages.append(_run_stage(model, stage, train, recipe.seed + index, device))
        previous = model
    accuracy = _accuracy(model, images.parts["test"], recipe.stages[-1], device)
    print(f"accuracy on the test part of {images.name}: {accuracy:.4f}", flush=True)
    facts = {"data": images.name, "test_accuracy": accuracy, "stages": stages}
    out.mkdir(parents=True, exist_ok=True)
    path, dtype = out / "backbone.safetensors", getattr(torch, recipe.stored)
    save_backbone(path, model.backbone, provenance_of(recipe) | facts, dtype)


def _run_stage(
    model: Classifier,
    stage: PretrainingStage,
    images: list[LabelledImage],
    seed: int,
    device: torch.device,
) -> dict[str, float]:
    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(pixels), labels, label_smoothing=stage.label_smoothing)

    def view(epoch: int) -> Transform:
        return training_view(stage.image_size, seed, epoch, crop_and_flip)

    return asdict(fit(list(model.parameters()), loss, images, view, stage, seed, device))


@torch.inference_mode()
def _accuracy(
    model: Classifier,
    images: Sequence[LabelledImage],
    stage: PretrainingStage,
    device: torch.device,
) -> float:
    model.eval()
    transform = evaluation_view(stage.image_size)
    batches = DataLoader(Pictures(images, transform), stage.batch_size, num_workers=stage.workers)
    right = sum(
        int((model(pixels.to(device)).argmax(dim=-1).cpu() == labels).sum())
        for pixels, labels in progress(batches, "test")
    )
    return right / len(images)
