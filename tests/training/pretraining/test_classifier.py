"""A backbone with several heads, its loss and its average."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F

from tests.conftest import TINY_BACKBONE
from training.fit.batches import Share
from training.fit.run import Run
from training.pretraining.classifier import Classifier, ClassifierObjective
from training.recipe.pretraining import PretrainingStage

CLASSES = (3, 2)
IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SHARES = torch.zeros(6, 5)
SHARES[[0, 1, 2], [0, 2, 1]] = 1.0  # of the first set
SHARES[3, :3] = torch.tensor([0.3, 0.0, 0.7])  # of the first set, mixed
SHARES[4, 4] = 1.0  # of the second set; the last one is padding


def objective(**changes: object) -> ClassifierObjective:
    stage = PretrainingStage.model_validate({"epochs": 1, "image_size": 32} | changes)
    torch.manual_seed(0)
    model = Classifier(TINY_BACKBONE, stage, CLASSES)
    run = Run(Accelerator(cpu=True), seed=3, recipe=stage, state=Path("none"))
    return ClassifierObjective(model, stage, run)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_is_each_head_s_own_cross_entropy(label_smoothing: float) -> None:
    ours = objective(label_smoothing=label_smoothing)
    logits = ours.model(IMAGES)

    def plain(images: slice | int, classes: slice, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            logits[images, classes], targets, label_smoothing=label_smoothing, reduction="sum"
        )

    first = plain(slice(4), slice(3), SHARES[:4, :3])
    second = plain(slice(4, 5), slice(3, 5), torch.tensor([1]))
    torch.testing.assert_close(ours(IMAGES, SHARES, 0), first + second)
    assert ours.weight(SHARES) == 5


def test_padding_and_the_other_head_get_no_gradient() -> None:
    ours = objective(label_smoothing=0.1)
    ours(IMAGES[4:], SHARES[4:], 0).backward()
    gradient = ours.model.head.weight.grad
    assert gradient is not None
    assert (gradient[:3] == 0).all()
    assert (gradient[3:] != 0).any()
    ours.zero_grad()
    ours(IMAGES[5:], SHARES[5:], 0).backward()
    assert all((each.grad == 0).all() for each in ours.model.parameters())


def test_the_average_is_the_moving_average_of_the_weights() -> None:
    ours = objective(ema_decay=0.75)
    parameter = ours.model.head.bias
    values = torch.tensor([1.0, 2.0, 6.0])
    expected = values[0]
    for step, value in enumerate(values):
        with torch.no_grad():
            parameter.fill_(value)
        ours.stepped()
        expected = value if step == 0 else 0.75 * expected + 0.25 * value
        torch.testing.assert_close(ours.averaged.head.bias, expected.expand(5))
    assert not any(each.requires_grad for each in ours.averaged.parameters())


def test_without_decay_the_average_is_the_last_weights() -> None:
    ours = objective(ema_decay=0.0)
    for value in (1.0, 5.0):
        with torch.no_grad():
            ours.model.head.bias.fill_(value)
        ours.stepped()
    assert torch.equal(ours.averaged.head.bias, ours.model.head.bias)


def test_what_a_state_keeps_of_the_average_is_the_average_itself() -> None:
    ours = objective()
    ours.stepped()
    kept = ours.averages()
    assert kept["n_averaged"] == 1
    for name, parameter in ours.averaged.named_parameters():
        assert kept[f"module.{name}"].data_ptr() == parameter.data_ptr()


def test_branches_are_left_out_by_seed_step_and_process_and_never_in_evaluation() -> None:
    def losses(ours: ClassifierObjective) -> list[float]:
        with torch.no_grad():
            return [ours(IMAGES, SHARES, step).item() for step in (0, 0, 1)]

    ours = objective(stochastic_depth=0.9)
    torch.rand(3)
    found = losses(ours)
    assert found[0] == found[1]
    assert found == losses(objective(stochastic_depth=0.9))
    whole = losses(objective())
    assert whole[0] == whole[2]
    assert found[0] != whole[0]
    assert losses(ours.eval()) == pytest.approx(whole, rel=1e-6)


def test_a_process_draws_for_itself() -> None:
    ours, other = objective(stochastic_depth=0.9), objective(stochastic_depth=0.9)
    other.run = type("Second", (), {"seed": 3, "share": Share(1, 2)})()
    found = {each(IMAGES, SHARES, 0).item() for each in (ours, other)}
    assert len(found) == 2


def test_stochastic_depth_changes_no_name_of_a_weight_and_grows_with_depth() -> None:
    plain, dropped = objective(), objective(stochastic_depth=0.4)
    assert list(plain.model.state_dict()) == list(dropped.model.state_dict())
    rates = [block.dropout.p for block in dropped.model.backbone.encoder.layers]
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(0.4)
    assert [block.mlp[-1].p for block in dropped.model.backbone.encoder.layers] == rates


def test_a_larger_stage_starts_from_the_smaller_one_s_weights() -> None:
    small, large = (
        Classifier(TINY_BACKBONE, PretrainingStage(epochs=1, image_size=size), CLASSES)
        for size in (16, 32)
    )
    large.take_weights(small)
    positions = "encoder.pos_embedding"
    ours, theirs = large.backbone.state_dict(), small.backbone.state_dict()
    assert ours[positions].shape[1] == 17
    assert theirs[positions].shape[1] == 5
    torch.testing.assert_close(ours[positions][:, 0], theirs[positions][:, 0])
    for name in theirs.keys() - {positions}:
        assert torch.equal(ours[name], theirs[name])
    assert torch.equal(large.head.weight, small.head.weight)
