"""The choice of the embedded model: its rule, and the quantities that the rule looks at."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eulerlora_lab.default_model import (
    EMBEDDED,
    MALIGNANT,
    Criteria,
    Outputs,
    adapter_ratio,
    chosen,
    criteria_of,
)
from tests.conftest import random_network
from training.evaluation.intervals import Estimate

PASSING = Criteria(
    ratio=0.1,
    draws=0.2,
    views=0.4,
    nll=0.45,
    nll_difference=Estimate(0.0, -0.02, 0.02),
    auroc_difference=Estimate(-0.01, -0.03, 0.01),
)


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({}, []),
        ({"ratio": 0.09}, ["adapters"]),
        ({"draws": 0.19}, ["draws"]),
        ({"nll_difference": Estimate(0.0, -0.02, 0.021)}, ["NLL"]),
        ({"nll_difference": Estimate(0.0)}, ["NLL"]),  # without an interval
        ({"auroc_difference": Estimate(-0.011, -0.02, 0.0)}, ["malignant AUROC"]),
    ],
)
def test_a_candidate_must_pass_every_condition(change: dict[str, float], failed: list[str]) -> None:
    candidate = replace(PASSING, **change)
    assert candidate.failed == failed
    assert chosen({"frozen": candidate}) == (EMBEDDED if failed else "frozen")


def test_the_lowest_nll_is_chosen_and_a_general_backbone_within_a_hundredth_of_it() -> None:
    def choice(frozen: float, fine_tuned: float) -> str:
        nll = {"frozen": frozen, "fine-tuned": fine_tuned}
        return chosen({name: replace(PASSING, nll=value) for name, value in nll.items()})

    assert choice(0.45, 0.46) == "frozen"
    assert choice(0.459, 0.45) == "frozen"
    assert choice(0.461, 0.45) == "fine-tuned"
    failing = replace(PASSING, ratio=0.0, nll=0.40)
    assert chosen({"frozen": failing, "fine-tuned": PASSING}) == "fine-tuned"


def outputs(seed: int) -> Outputs:
    """Of 40 images of 20 lesions; adapters differ by 100 in a logit, draws by 1, views by 2."""
    random = np.random.default_rng(seed)
    arrays = {"classes": np.array([*MALIGNANT, "nv"]), "adapter_ratio": np.array(0.2)}
    for part in ("calibration", "validation"):
        arrays[f"{part}.labels"] = labels = np.arange(40) // 2 % 4
        arrays[f"{part}.lesions"] = np.array([f"lesion-{i // 2}" for i in range(40)])
        for mode, samples in (("det", 1), ("stoch", 2)):
            noise = random.normal(size=(40, 3, samples, 4))
            arrays[f"{part}.{mode}"] = noise + 2 * np.eye(4)[labels][:, None, None]
    adapters = 100 * np.arange(3)[None, :, None, None]
    for name, size in (("draws", 1), ("views", 2)):
        steps = size * np.array([-1, 1]) / np.sqrt(2)  # a deviation of `size`
        arrays[f"moved.{name}"] = np.zeros((5, 3, 2, 4)) + adapters + steps[None, None, :, None]
    return Outputs(arrays)


def test_the_ratio_of_adapters_is_the_median_over_their_merged_products() -> None:
    network = random_network()
    ratios = []
    for layer, block in zip(network.backbone.encoder.layers, network.blocks, strict=True):
        attention = layer.self_attention
        frozen = [*attention.in_proj_weight.view(3, 16, 16), attention.out_proj.weight]
        for index, weight in enumerate(frozen):
            for adapter in range(2):
                product = block.up[index, adapter].T @ block.down[index, adapter]
                ratios.append(float(product.detach().norm() / weight.norm()))
    assert adapter_ratio(network) == pytest.approx(np.median(ratios))


def test_the_criteria_are_paired_differences_and_deviations_within_an_adapter() -> None:
    ours, embedded = outputs(0), outputs(1)
    criteria = criteria_of(ours, embedded)
    temperature = ours.temperatures["stoch"]
    assert criteria.draws == pytest.approx(1 / temperature)
    assert criteria.views == pytest.approx(2 / temperature)
    logits = torch.from_numpy(ours.arrays["validation.stoch"]).flatten(1, 2) / temperature
    mean = logits.softmax(dim=-1).mean(dim=1)
    labels = ours.labels("validation")
    assert criteria.nll == pytest.approx(-mean[range(40), labels].log().mean().item())
    difference = criteria.nll_difference
    assert difference.value == pytest.approx(criteria.nll - criteria_of(embedded, ours).nll)
    assert criteria_of(embedded, ours).nll_difference.value == pytest.approx(-difference.value)
    same = criteria_of(ours, ours)
    assert (same.nll_difference.value, same.auroc_difference.value) == (0, 0)
