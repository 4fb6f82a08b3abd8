"""A classifier with several heads, its loss and its average."""

from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer as TimmTransformer
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from eulerlora.checkpoint.weights import load_backbone, save_backbone
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing
from eulerlora_lab.pretraining.classifier import Classifier, ClassifierObjective
from eulerlora_lab.pretraining.recipe import PretrainingStage
from tests.conftest import TINY_BACKBONE
from training.optimisation.batches import IGNORED

CLASSES = (3, 2)
IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 2, 1, 2, 4, IGNORED])  # four of the first set, one of the second


def make_objective(**changes: object) -> ClassifierObjective:
    stage = PretrainingStage.model_validate({"epochs": 1, "image_size": 32} | changes)
    torch.manual_seed(0)
    return ClassifierObjective(Classifier(TINY_BACKBONE, stage, CLASSES), stage)


def loss_of(
    objective: ClassifierObjective, images: slice = slice(None), step: int = 0, process: int = 0
) -> Tensor:
    draw = objective.draw(3, step, process)
    return objective.loss(objective.network, IMAGES[images], LABELS[images], draw)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_of_every_head_on_its_set(label_smoothing: float) -> None:
    objective = make_objective(label_smoothing=label_smoothing)
    logits = objective.model(IMAGES).logits

    def cross_entropy(images: slice, classes: slice, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            logits[images, classes], labels, label_smoothing=label_smoothing, reduction="sum"
        )

    first = cross_entropy(slice(4), slice(3), LABELS[:4])
    second = cross_entropy(slice(4, 5), slice(3, 5), torch.tensor([1]))
    torch.testing.assert_close(loss_of(objective), first + second)
    assert objective.weight(LABELS) == 5


def test_unlabelled_views_add_a_weighted_cross_entropy_over_pairs() -> None:
    objective = make_objective(contrast_weight=0.25)
    labelled = objective.loss(objective.network, IMAGES[:2], LABELS[:2], (0, 0, 0))
    labels = torch.tensor([0, 2, 5, 9, 9, 5])  # the classes end at 4
    views = objective.model(IMAGES).embeddings[2:]
    similarity = F.cosine_similarity(views[:, None], views[None], dim=-1) / 0.2
    similarity.fill_diagonal_(-torch.inf)
    contrast = F.cross_entropy(similarity, torch.tensor([3, 2, 1, 0]), reduction="sum")
    total = objective.loss(objective.network, IMAGES, labels, (0, 0, 0))
    torch.testing.assert_close(total, labelled + 0.25 * contrast)
    assert objective.weight(labels) == 2 + 0.25 * 4


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_view_without_a_partner_adds_no_loss_and_no_gradient(count: int) -> None:
    objective = make_objective()
    labels = torch.full((6,), IGNORED)
    labels[:count] = torch.arange(5, 5 + count)
    loss = objective.loss(objective.network, IMAGES, labels, (0, 0, 0))
    loss.backward()
    assert loss == 0
    for name, parameter in objective.model.projection.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad == 0).all(), name


def test_folding_the_stem_changes_no_feature_and_leaves_a_backbone_that_loads(
    tmp_path: Path,
) -> None:
    settings = TINY_BACKBONE.model_copy(update={"stem": "convolution"})
    model = Classifier(settings, PretrainingStage(epochs=1, image_size=32), CLASSES)
    for _ in range(3):
        model(3 * IMAGES - 1)  # changes the statistics of the batch normalisation
    expected = model.eval()(IMAGES)
    folded = model.fold_stem()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded(IMAGES).logits, expected.logits)
    save_backbone(tmp_path / "b.safetensors", folded.backbone, {}, torch.float32)
    loaded = load_backbone(tmp_path / "b.safetensors").backbone
    assert loaded.settings == settings
    torch.testing.assert_close(loaded.eval()(IMAGES), folded.backbone(IMAGES))


@torch.inference_mode()
def test_a_classifier_from_a_file_has_its_features_of_normalised_images(tmp_path: Path) -> None:
    settings = TINY_BACKBONE.model_copy(update={"stem": "convolution"})
    colours = Preprocessing(size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    path = tmp_path / "b.safetensors"
    save_backbone(path, VisionTransformer(settings), {}, torch.float32, colours)
    start = load_backbone(path)
    stage = PretrainingStage(epochs=1, image_size=32)
    model = Classifier(settings, stage, CLASSES, start).eval()
    expected = start.backbone.eval()(v2.Normalize(colours.mean, colours.std)(IMAGES))
    torch.testing.assert_close(model(IMAGES).logits, model.head(expected))
    assert model.preprocessing == colours
    assert model.fold_stem() is model


def test_learning_rates_decay_by_layer_as_in_timm() -> None:
    objective = make_objective(learning_rate=1e-4, layer_decay=0.5, head_learning_rate=1e-3)
    model = TimmTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=16,
        depth=TINY_BACKBONE.layers,
        num_heads=2,
    )
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    names = {
        "cls_token": "class_token",
        "pos_embed": "encoder.pos_embedding",
        "patch_embed.proj.weight": "conv_proj.weight",
        **{
            f"blocks.{block}.mlp.fc1.weight": f"encoder.layers.encoder_layer_{block}.mlp.0.weight"
            for block in range(TINY_BACKBONE.layers)
        },
    }
    own = dict(objective.network.named_parameters())
    for theirs, name in names.items():
        assert f"backbone.{name}" in own
        expected = scales[id(model.get_parameter(theirs))]
        assert objective.lr_scale(f"backbone.{name}") == pytest.approx(expected)
    assert objective.lr_scale("backbone.encoder.ln.weight") == 1
    assert objective.lr_scale("head.weight") == pytest.approx(10)
    assert make_objective().lr_scale("head.weight") == 1


def test_the_average_is_the_moving_average_of_the_weights() -> None:
    objective = make_objective(ema_decay=0.75)
    values = torch.tensor([1.0, 2.0, 6.0])
    expected = values[0]
    for step, value in enumerate(values):
        with torch.no_grad():
            objective.model.head.bias.fill_(value)
        objective.after_step()
        expected = value if step == 0 else 0.75 * expected + 0.25 * value
        torch.testing.assert_close(objective.averaged.head.bias, expected.expand(5))
    assert not any(p.requires_grad for p in objective.averaged.parameters())


def test_stochastic_depth_depends_on_seed_step_and_process_and_is_off_in_evaluation() -> None:
    def losses(objective: ClassifierObjective) -> list[float]:
        with torch.no_grad():
            keys = ((0, 0), (0, 0), (1, 0), (0, 1))
            return [loss_of(objective, step=step, process=process).item() for step, process in keys]

    objective = make_objective(stochastic_depth=0.9)
    torch.rand(3)
    dropped = losses(objective)
    assert dropped[0] == dropped[1]
    assert dropped[0] != dropped[3]
    assert dropped == losses(make_objective(stochastic_depth=0.9))
    plain = losses(make_objective())
    assert len(set(plain)) == 1
    assert dropped[0] != plain[0]
    objective.network.eval()
    assert losses(objective) == pytest.approx(plain, rel=1e-6)


def test_a_larger_stage_starts_with_the_weights_of_the_smaller_one() -> None:
    small, large = (
        Classifier(TINY_BACKBONE, PretrainingStage(epochs=1, image_size=size), CLASSES)
        for size in (16, 32)
    )
    large.load_smaller(small)
    positions = "encoder.pos_embedding"
    after, before = large.backbone.state_dict(), small.backbone.state_dict()
    assert after[positions].shape[1] == 17
    assert before[positions].shape[1] == 5
    torch.testing.assert_close(after[positions][:, 0], before[positions][:, 0])
    for name in before.keys() - {positions}:
        assert torch.equal(after[name], before[name])
    assert torch.equal(large.head.weight, small.head.weight)
