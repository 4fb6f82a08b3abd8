"""The choice of the embedded model: its rule, and the quantities that the rule looks at."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eulerlora.checkpoint.files import load_checkpoint
from eulerlora_lab import default_model
from training.evaluation.intervals import Estimate

Results = Callable[[Mapping[str, Mapping[str, Any]]], dict[str, Any]]


@pytest.fixture
def results(program: Callable[..., str], tmp_path: Path) -> Results:
    """What the program concludes from the stored arrays of candidates."""

    def concluded(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        names = [argument for name in arrays for argument in ("--candidate", name)]
        for name, of_name in arrays.items():
            np.savez(tmp_path / f"{name}.npz", **of_name)
        program(default_model.main, "--data", tmp_path, "--out", tmp_path, *names)
        written: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
        return written

    return concluded


def outputs(seed: int, draws: float = 1, views: float = 2, ratio: float = 0.2) -> dict[str, Any]:
    """Of 40 images of 20 lesions; adapters differ by 100 in a logit, draws and views as stated."""
    random = np.random.default_rng(seed)
    classes = np.array(["mel", "bcc", "akiec", "nv"])
    arrays: dict[str, Any] = {"classes": classes, "adapter_ratio": np.array(ratio)}
    for part in ("calibration", "validation", "far"):
        arrays[f"{part}.labels"] = labels = np.arange(40) // 2 % 4
        arrays[f"{part}.lesions"] = np.array([f"lesion-{i // 2}" for i in range(40)])
        for mode, samples in (("det", 1), ("stoch", 2)):
            noise = random.normal(size=(40, 3, samples, 4))
            arrays[f"{part}.{mode}"] = noise + 2 * np.eye(4)[labels][:, None, None]
    adapters = 100 * np.arange(3)[None, :, None, None]
    for name, size in (("draws", draws), ("views", views)):
        steps = size * np.array([-1, 1])  # exact, with a deviation of size * sqrt(2)
        arrays[f"moved.{name}"] = np.zeros((5, 3, 2, 4)) + adapters + steps[None, None, :, None]
    return arrays


def with_loss(nll: float, **changes: float) -> dict[str, Any]:
    """Outputs with one loss for all images of the validation part."""
    arrays = outputs(0, **{"draws": 0.25, "views": 0.5, "ratio": 0.1} | changes)
    right = np.eye(4)[arrays["validation.labels"]][:, None, None]
    p = np.exp(-nll)
    log_p = np.log(np.where(right == 1, p, (1 - p) / 3))
    return arrays | {"validation.stoch": np.broadcast_to(log_p, (40, 3, 2, 4))}


@pytest.fixture
def choice(results: Results, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Concludes from outputs at temperature 1, with given differences from the embedded model."""

    def concluded(
        candidates: Mapping[str, Mapping[str, Any]],
        nll: Estimate = Estimate(0.0, -0.02, 0.02),  # noqa: B008 - immutable
        auroc: Estimate = Estimate(-0.01, -0.03, 0.01),  # noqa: B008 - immutable
    ) -> dict[str, Any]:
        at_one = SimpleNamespace(temperature=1.0)
        given = {"nll": nll, "auroc": auroc, "accuracy": None}
        monkeypatch.setattr(default_model, "fit_temperature", lambda *_: at_one)
        monkeypatch.setattr(default_model, "bootstrap", lambda *_: given)
        return results({"embedded": with_loss(0.5)} | dict(candidates))

    return concluded


@pytest.mark.parametrize(
    ("change", "differences", "failed"),
    [
        ({}, {}, []),
        ({"ratio": 0.09}, {}, ["adapters"]),
        ({"draws": 0.24}, {}, ["draws"]),
        ({}, {"nll": Estimate(0.0, -0.02, 0.021)}, ["NLL"]),
        ({}, {"nll": Estimate(0.0)}, ["NLL"]),  # without an interval
        ({}, {"auroc": Estimate(-0.011, -0.02, 0.0)}, ["malignant AUROC"]),
    ],
)
def test_a_candidate_must_pass_every_condition(
    choice: Callable[..., dict[str, Any]],
    change: dict[str, float],
    differences: dict[str, Estimate],
    failed: list[str],
) -> None:
    concluded = choice({"frozen": with_loss(0.45, **change)}, **differences)
    assert concluded["candidates"]["frozen"]["failed"] == failed
    assert concluded["chosen"] == ("embedded" if failed else "frozen")


@pytest.mark.parametrize(
    ("frozen", "fine_tuned", "chosen"),
    [(0.45, 0.46, "frozen"), (0.459, 0.45, "frozen"), (0.461, 0.45, "fine-tuned")],
)
def test_the_lowest_nll_is_chosen_and_a_general_backbone_within_a_hundredth_of_it(
    choice: Callable[..., dict[str, Any]], frozen: float, fine_tuned: float, chosen: str
) -> None:
    candidates = {"frozen": with_loss(frozen), "fine-tuned": with_loss(fine_tuned)}
    assert choice(candidates)["chosen"] == chosen


def test_a_candidate_that_passes_does_not_replace_a_better_model(
    choice: Callable[..., dict[str, Any]],
) -> None:
    assert choice({"fine-tuned": with_loss(0.51)})["chosen"] == "embedded"


def test_a_candidate_that_fails_is_not_chosen_for_its_nll(
    choice: Callable[..., dict[str, Any]],
) -> None:
    candidates = {"frozen": with_loss(0.4, ratio=0.0), "fine-tuned": with_loss(0.45)}
    assert choice(candidates)["chosen"] == "fine-tuned"


def test_the_ratio_of_adapters_is_the_median_over_their_merged_products(
    program: Callable[..., str],
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {"calibration": [], "validation": []}
    monkeypatch.setattr(default_model, "read_dataset", lambda *_: SimpleNamespace(parts=parts))
    monkeypatch.setattr(default_model, "read_ood_set", lambda *_: SimpleNamespace(images=[]))
    nothing = SimpleNamespace(log_probabilities=torch.zeros(0, 3), log_partition=torch.zeros(0))
    monkeypatch.setattr(
        default_model, "predict_all", lambda _, __, options, ___: [nothing] * len(options)
    )
    monkeypatch.setattr(default_model, "evenly_spaced", lambda images, _: images)
    shutil.copytree(checkpoint_folder, tmp_path / "frozen")  # a finished training
    arguments = ("--data", tmp_path, "--out", tmp_path, "--candidate", "frozen")
    program(default_model.main, *arguments)
    network = load_checkpoint(checkpoint_folder).network
    ratios = []
    for layer, block in zip(network.backbone.encoder.layers, network.blocks, strict=True):
        attention = layer.self_attention
        frozen = [*attention.in_proj_weight.view(3, 16, 16), attention.out_proj.weight]
        for index, weight in enumerate(frozen):
            for adapter in range(2):
                product = block.up[index, adapter].T @ block.down[index, adapter]
                ratios.append(float(product.detach().norm() / weight.norm()))
    stored = np.load(tmp_path / "frozen.npz")
    assert stored["adapter_ratio"] == pytest.approx(np.median(ratios), rel=1e-5)


def value(text: str) -> float:
    return float(text.split(maxsplit=1)[0])


def test_the_criteria_are_paired_differences_and_deviations_within_an_adapter(
    results: Results,
) -> None:
    concluded = results({"embedded": outputs(1), "frozen": outputs(0), "details": outputs(1)})
    ours, embedded, same = (
        concluded["candidates"][name] for name in ("frozen", "embedded", "details")
    )
    temperature = ours["stoch"]["temperature"]
    assert ours["deviation_over_draws"] == pytest.approx(2**0.5 / temperature)
    assert ours["deviation_over_views"] == pytest.approx(8**0.5 / temperature)
    logits = torch.from_numpy(outputs(0)["validation.stoch"]).flatten(1, 2) / temperature
    mean = logits.softmax(dim=-1).mean(dim=1)
    labels = outputs(0)["validation.labels"]
    nll = -mean[range(40), labels].log().mean().item()
    assert value(ours["stoch"]["nll"]) == pytest.approx(nll, abs=6e-4)
    difference = value(ours["stoch"]["nll"]) - value(embedded["stoch"]["nll"])
    assert value(ours["nll_difference"]) == pytest.approx(difference, abs=2e-3)
    assert value(same["nll_difference"]) == value(same["malignant_auroc_difference"]) == 0
