"""Does sampling help where adapters learn? Adapters that do all of the adapting, from random heads.

    python -m studies.adaptation STAGE --data DIR --backbone FILE [--dataset NAME] [--image-size N]

DIR is a data directory as for recipes (cifar10-jpeg.tar.xz, svhn/, HAM10000). Every finished run is
a line of `studies/results/adaptation.jsonl`; a run that has its line is not repeated, and an
interrupted run continues from its last epoch (state beside --out). studies/README.md has the
protocol, fixed before the first run.
"""

import argparse
import itertools
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.optim import AdamW

from eulerlora.checkpoint.weights import at_image_size, load_backbone
from eulerlora.images.preprocess import network_input
from eulerlora.methods.registry import build_network, methods
from eulerlora.nn.attention import SelfAttention
from eulerlora.nn.method import AttentionAdapters, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.uncertainty import summarise
from eulerlora.settings import Preprocessing
from training.adaptation.network import whole_network
from training.adaptation.objective import AdapterObjective, effective_number_weights
from training.adaptation.probe import fit_heads
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import ImageParts, LabelledImage, evenly_spaced
from training.data.registry import OodSettings
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import (
    classification_metrics,
    log_mean_probability,
    ood_metrics,
)
from training.optimisation.step import attention_kernels, warmup_cosine
from training.recipe.schema import AdapterTraining, WholeNetworkSettings

BATCH, EVALUATION_BATCH = 32, 16
WEIGHT_DECAY, CLIP_NORM = 0.01, 1.0
SAMPLES = (1, 4, 16)
"""Samples per adapter in mode stoch; an answer with fewer samples has the first ones of 16."""
OOD_SAMPLES = 4
TUNING_SEED = 100
"""Of the runs that choose gain and rate; no other run has its training images."""
SEEDS = (0, 42, 1206, 2205, 25008)


@dataclass(frozen=True)
class Arm:
    """What is trained: adapters with or without draws in training, or (`whole`) all weights."""

    adapters: int = 1
    rank: int = 20
    samples: int = 1
    sampling: bool = False
    dropout: float = 0.0
    whole: bool = False
    method: str = "eulerlora"
    rate_of: str = ""
    """The arm whose chosen rate this one takes; itself if empty."""
    best_epoch: bool = False
    """Evaluate the weights of the epoch with the lowest validation NLL too."""


ARMS: Mapping[str, Arm] = {
    "lora": Arm(best_epoch=True),
    "eulerlora-1": Arm(sampling=True),
    "lora-dropout": Arm(dropout=0.1, rate_of="lora"),
    "eulerlora-1x4": Arm(samples=4, sampling=True, rate_of="eulerlora-1"),
    "eulerlora-2": Arm(adapters=2, sampling=True),
    "bayeslora": Arm(sampling=True, method="bayeslora"),
    "bayeslora-slower": Arm(sampling=True, method="bayeslora", rate_of="eulerlora-1"),
    "ensemble-20x2": Arm(adapters=2),
    "ensemble-8x16": Arm(adapters=16, rank=8, rate_of="ensemble-20x2"),
    "whole": Arm(whole=True),
}


@dataclass(frozen=True)
class Run:
    stage: str
    dataset: str
    backbone: str
    image_size: int
    arm: str
    gain: float
    rate: float
    head: str
    seed: int
    images: int  # for training, resampled for every seed
    epochs: int


@dataclass(frozen=True)
class DataSet:
    """Where images come from, and how many serve validation and test."""

    settings: DataSettings
    flips: str  # of the training view, `horizontal` or `both`
    rates_of: str = ""
    """The data set whose chosen gain and rates this one takes; itself if empty."""


DATASETS: Mapping[str, DataSet] = {
    "cifar10": DataSet(
        DataSettings(
            kind="imagefolder",
            path="cifar10-jpeg.tar.xz",
            split="lesion-best-epoch",
            at_most={"validation": 1000, "test": 2000},
        ),
        flips="horizontal",
    ),
    "ham10000": DataSet(DataSettings(kind="ham10000", split="lesion-best-epoch"), flips="both"),
    "ham10000-paper": DataSet(
        DataSettings(kind="ham10000", split="paper"), flips="both", rates_of="ham10000"
    ),
}

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
WHOLE_RATES = (1e-5, 3e-5, 1e-4, 3e-4)
GAIN_ARMS = ("eulerlora-1", "lora", "ensemble-20x2")
PRIMARY_ARMS = ("lora", "eulerlora-1")
"""Of the first primary endpoint; they have all seeds on CIFAR-10, all else has the first three."""
SHORT: Mapping[str, Any] = {"seed": TUNING_SEED, "images": 1000, "epochs": 8}


def gain_runs(base: Mapping[str, Any], _: Sequence[Mapping[str, Any]]) -> Iterator[Run]:
    """Yields the grid of gains and rates: 1,000 images, 8 epochs."""
    for gain, rate, arm in itertools.product(
        (1.0, 10.0, 3.0, 0.3), (1e-3, 3e-4, 3e-3, 1e-4), GAIN_ARMS
    ):
        yield Run(**base, **SHORT, stage="gain", arm=arm, gain=gain, rate=rate)


def rate_runs(base: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[Run]:
    """Yields the runs that choose the rate of the other arms, at the chosen gain."""
    gain = chosen_gain(results, base)
    for name, arm in ARMS.items():
        if not arm.rate_of and name not in GAIN_ARMS:
            for rate in WHOLE_RATES if arm.whole else RATES:
                yield Run(**base, **SHORT, stage="rate", arm=name, gain=gain, rate=rate)


def claims_runs(base: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[Run]:
    """Yields the runs of the claims: first the primary arms, then all others of a seed in turn."""
    tuned = {**base, "dataset": DATASETS[base["dataset"]].rates_of or base["dataset"]}
    gain = chosen_gain(results, tuned)
    long: dict[str, Any] = {"stage": "claims", "images": 2500, "epochs": 8, "gain": gain}
    others = [name for name in ARMS if name not in PRIMARY_ARMS]
    seeds = SEEDS if base["dataset"] == "cifar10" else SEEDS[:3]
    for seed, name in (
        *itertools.product(seeds, PRIMARY_ARMS),
        *itertools.product(SEEDS[:3], others),
    ):
        rate = chosen_rate(results, tuned, ARMS[name].rate_of or name)
        if rate is not None:
            yield Run(**base, **long, arm=name, rate=rate, seed=seed)


STAGES: Mapping[str, Callable[..., Iterator[Run]]] = {
    "gain": gain_runs,
    "rate": rate_runs,
    "claims": claims_runs,
}


def chosen_gain(results: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> float:
    """The gain with the lowest validation NLL, the mean over methods at their best rate."""
    best: dict[float, dict[str, float]] = {}
    for result in results:
        if not {"stage": "gain", **base}.items() <= result["run"].items():
            continue
        run, nll = result["run"], finite_or_infinite(result["validation"]["nll"])
        arms = best.setdefault(run["gain"], {})
        arms[run["arm"]] = min(nll, arms.get(run["arm"], math.inf))
    return min(best, key=lambda gain: float(np.mean(list(best[gain].values()))))


def chosen_rate(
    results: Sequence[Mapping[str, Any]], base: Mapping[str, Any], arm: str
) -> float | None:
    """The rate of an arm with the lowest validation NLL at that gain; None before its runs."""
    expected = {
        "stage": "gain" if arm in GAIN_ARMS else "rate",
        "arm": arm,
        "gain": chosen_gain(results, base),
    }
    runs = [r for r in results if {**base, **expected}.items() <= r["run"].items()]
    if len(runs) < len(WHOLE_RATES if ARMS[arm].whole else RATES):
        return None
    best = min(runs, key=lambda r: finite_or_infinite(r["validation"]["nll"]))
    return float(best["run"]["rate"])


def finite_or_infinite(nll: float) -> float:
    """An NLL; infinity for NaN, which no comparison would order."""
    return nll if math.isfinite(nll) else math.inf


def prepared(
    images: Sequence[LabelledImage], preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, size, size) uint8 of the network's input, and labels (n,)."""
    pixels = [
        network_input(image.pixels(), preprocessing).mul(255).round().byte() for image in images
    ]
    return torch.stack(pixels), torch.tensor([image.label for image in images])


def augmented(pixels: Tensor, flips: str, generator: torch.Generator) -> Tensor:
    """Flipped images, shifted by up to an eighth of their side; (n, 3, s, s) in [0, 1]."""
    images = pixels.float() / 255
    border = images.shape[-1] // 8
    padded = torch.nn.functional.pad(images, [border] * 4, mode="reflect")
    views = []
    for image in padded:
        top, left = torch.randint(2 * border + 1, (2,), generator=generator).tolist()
        view = image[:, top : top + pixels.shape[-1], left : left + pixels.shape[-1]]
        flipped = torch.rand(2, generator=generator) < 0.5
        dims = [2] * bool(flipped[0]) + [1] * (bool(flipped[1]) and flips == "both")
        views.append(view.flip(dims))
    return torch.stack(views)


def network_of(
    run: Run, backbone_file: Path, images: ImageParts, device: torch.device
) -> AdaptedVisionTransformer:
    arm, file = ARMS[run.arm], load_backbone(backbone_file)
    backbone = at_image_size(file.backbone, run.image_size)
    preprocessing, classes = file.preprocessing.at_size(run.image_size), len(images.classes)
    if arm.whole:
        network = whole_network(backbone, WholeNetworkSettings(), classes, preprocessing)
        network.heads.initialise(torch.Generator().manual_seed(run.seed))
    else:
        settings = AdapterSettings(
            adapters=arm.adapters,
            rank=arm.rank,
            min_rank=(arm.rank + 1) // 2,
            init_gain=run.gain,
        )
        method = methods()[arm.method].settings_type(name=arm.method)
        network = build_network(backbone, settings, classes, preprocessing, method)
        network.initialise(torch.Generator().manual_seed(run.seed))
    network.to(device)
    if run.head == "probe":
        fit_heads(network, images, device)
    return network


@torch.inference_mode()
def logits_of(network: AdaptedVisionTransformer, pixels: Tensor, samples: int) -> Tensor:
    """Logits (n, adapters, samples or 1, classes) float32 on the CPU; 0 samples are mode det.

    Every image has draws of its own, from a generator of its index.
    """
    batches = []
    adapters, device = network.settings.adapters, network.heads.weight.device
    for start in range(0, len(pixels), EVALUATION_BATCH):
        part = pixels[start : start + EVALUATION_BATCH].to(device).float() / 255
        count = len(part)
        if samples:
            drawn = [
                network.method.sample(samples, torch.Generator().manual_seed(start + index))
                for index in range(count)
            ]
            draws = RowDraws.cat(drawn, [adapters * samples] * count)
        else:
            draws = network.method.det().repeated(count)
        rows = Rows.of([samples or 1] * count, adapters).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = network(part, rows, draws.to(part))
        batches.append(logits.float().cpu().view(count, adapters, samples or 1, -1))
    return torch.cat(batches)


def measured(
    logits: Tensor, labels: Tensor, validation: tuple[Tensor, Tensor] | None
) -> dict[str, float]:
    """Metrics of the mean probability, also at the temperature fitted to `validation`.

    `logits`: (n, trajectories, classes). `validation`: logits and labels of the same form.
    """
    values = _metrics(logits, labels)
    if validation is not None:
        temperature = fitted_temperature(*validation)
        scaled = _metrics(logits / temperature, labels)
        values["temperature"] = temperature
        values |= {f"{name}_scaled": scaled[name] for name in ("nll", "ece", "brier")}
    if logits.shape[1] > 1:
        answers = summarise(logits.softmax(dim=-1))
        labels_of_rows = logits.argmax(dim=-1)
        values["mutual_information"] = float(answers.mutual_information.mean())
        values["disagreement"] = float(
            (labels_of_rows != answers.probabilities.argmax(dim=-1)[:, None]).double().mean()
        )
        values["logit_deviation"] = float(logits.double().std(dim=1).mean())
    return values


def _metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    log_probabilities = logits.double().log_softmax(dim=-1)
    weights, truth = unit_weights(len(labels)), labels.numpy()
    metrics = classification_metrics(log_probabilities, truth, weights)
    names = ("accuracy", "nll", "ece", "brier", "macro_f1", "macro_auroc")
    return {name: float(metrics[name][0]) for name in names}


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of the logits with the lowest NLL of the mean probability."""

    def nll(log_temperature: float) -> float:
        scaled = logits.double() / math.exp(log_temperature)
        log_mean = log_mean_probability(scaled.log_softmax(dim=-1))
        return -float(log_mean[torch.arange(len(labels)), labels].mean())

    return math.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x)


def adapter_ratio(network: AdaptedVisionTransformer) -> float | None:
    """The median of ||B A|| / ||W0|| over blocks, projections and adapters."""
    ratios = []
    for block, adapters in zip(network.backbone.encoder.layers, network.blocks, strict=True):
        attention = block.self_attention
        assert isinstance(attention, SelfAttention)
        assert isinstance(adapters, AttentionAdapters)
        frozen = [*attention.in_proj_weight.chunk(3), attention.out_proj.weight]
        for weight, down, up in zip(frozen, adapters.down, adapters.up, strict=True):
            products = up.detach().transpose(1, 2) @ down.detach()  # (adapters, width, width)
            ratios += (products.flatten(1).norm(dim=1) / weight.norm()).tolist()
    return float(np.median(ratios))


def train(
    run: Run,
    network: AdaptedVisionTransformer,
    images: ImageParts,
    data: DataSet,
    state_file: Path,
) -> tuple[list[dict[str, float]], dict[str, Tensor] | None]:
    """Trains in place; returns the curve, and the weights of the best epoch if the arm keeps them.

    The curve has the mean training loss and the validation NLL of mode det of every epoch; a run
    whose loss is not finite goes on to the end and has the NLL NaN.
    """
    arm, device = ARMS[run.arm], network.heads.weight.device
    parts = images.parts
    chosen = parts["train"]
    if run.images < len(chosen):
        classes = [image.label for image in chosen]
        chosen, _ = train_test_split(
            chosen, train_size=run.images, stratify=classes, random_state=run.seed
        )
    pixels, labels = prepared(chosen, network.preprocessing)
    validation = None
    if "validation" in parts:
        validation = prepared(parts["validation"], network.preprocessing)
    settings = AdapterTraining(
        epochs=run.epochs,
        batch_size=BATCH,
        samples=arm.samples,
        sampling=arm.sampling,
        adapter_dropout=arm.dropout,
    )
    class_weights = torch.ones(len(images.classes))
    if run.dataset == "ham10000-paper":  # the paper weights its split
        counts = labels.bincount(minlength=len(images.classes))
        class_weights = effective_number_weights(counts, beta=0.9991).float()
    objective = AdapterObjective(
        network, settings, class_weights.to(device), image_count=len(labels)
    )
    trained = [p for p in network.parameters() if p.requires_grad]
    optimiser = AdamW(trained, lr=run.rate, weight_decay=WEIGHT_DECAY)
    steps_per_epoch = math.ceil(len(labels) / BATCH)
    fraction = warmup_cosine(run.epochs * steps_per_epoch, "auto")
    curve: list[dict[str, float]] = []
    best: dict[str, Tensor] | None = None
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        if state["run"] == asdict(run):
            with torch.no_grad():
                for parameter, value in zip(trained, state["weights"], strict=True):
                    parameter.copy_(value)
            optimiser.load_state_dict(state["optimiser"])
            curve, best = state["curve"], state["best"]
    for epoch in range(len(curve), run.epochs):
        generator = torch.Generator().manual_seed(run.seed * 1000 + epoch)
        order = torch.randperm(len(labels), generator=generator)
        total = 0.0
        for index, batch in enumerate(order.split(BATCH)):
            step = epoch * steps_per_epoch + index
            for group in optimiser.param_groups:
                group["lr"] = run.rate * fraction(step)
            views = augmented(pixels[batch], data.flips, generator).to(device)
            truth = labels[batch].to(device)
            with attention_kernels(device):
                with torch.autocast(device.type, torch.bfloat16):
                    draw = objective.draw(run.seed, step, 0)
                    losses = objective.loss(network, views, truth, draw)
                loss = losses / objective.weight(truth)
                optimiser.zero_grad()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM)
            optimiser.step()
            total += float(loss.detach()) * len(batch)
        curve.append({"loss": total / len(labels)})
        if validation is not None:
            logits = logits_of(network, validation[0], samples=0).flatten(1, 2)
            curve[-1]["validation_nll"] = _metrics(logits, validation[1])["nll"]
            if arm.best_epoch and curve[-1]["validation_nll"] <= min(
                entry["validation_nll"] for entry in curve
            ):
                best = {n: p.detach().clone() for n, p in network.adapter_parameters()}
        state = {
            "run": asdict(run),
            "weights": [parameter.detach() for parameter in trained],
            "optimiser": optimiser.state_dict(),
            "curve": curve,
            "best": best,
        }
        torch.save(state, state_file.with_suffix(".new"))
        state_file.with_suffix(".new").replace(state_file)
        print(f"  epoch {epoch + 1}: {curve[-1]}", flush=True)
    return curve, best


def result_of(
    run: Run, backbone: Path, directory: Path, state_file: Path, device: torch.device
) -> dict[str, Any]:
    """Trains and evaluates a run; returns its line."""
    started = time.monotonic()
    data = DATASETS[run.dataset]
    images = read_dataset(data.settings, directory)
    network = network_of(run, backbone, images, device)
    curve, best = train(run, network, images, data, state_file)
    trained_s = time.monotonic() - started
    result: dict[str, Any] = {"run": asdict(run), "curve": curve, "train_s": round(trained_s)}
    arm = ARMS[run.arm]
    if not arm.whole:
        result["ratio"] = adapter_ratio(network)
    final = (
        []
        if "validation" not in images.parts
        else [prepared(images.parts["validation"], network.preprocessing)]
    )
    modes: list[int] = [0] if arm.whole or arm.adapters == 16 else [0, max(SAMPLES)]
    validation = {}
    for pixels, labels in final:
        validation = {
            samples: (logits_of(network, pixels, samples), labels)
            for samples in ([0] if run.stage != "claims" else modes)
        }
        result["validation"] = _metrics(validation[0][0].flatten(1, 2), labels)
    if run.stage == "claims":
        result["test"] = tested(run, network, images, modes, validation, directory)
        if best is not None:
            for name, parameter in network.adapter_parameters():
                parameter.data.copy_(best[name])
            best_validation = {0: (logits_of(network, final[0][0], 0), final[0][1])}
            result["best_epoch"] = tested(run, network, images, [0], best_validation, directory)
    result["seconds"] = round(time.monotonic() - started)
    return result


def tested(
    run: Run,
    network: AdaptedVisionTransformer,
    images: ImageParts,
    modes: Sequence[int],
    validation: Mapping[int, tuple[Tensor, Tensor]],
    directory: Path,
) -> dict[str, Any]:
    """Metrics of the test part, and for CIFAR-10 of MSP against SVHN, by mode."""
    pixels, labels = prepared(images.parts["test"], network.preprocessing)
    outside = None
    if run.dataset == "cifar10":
        svhn = read_ood_set(OodSettings(kind="images", path="svhn"), directory).images
        outside, _ = prepared(evenly_spaced(svhn, len(labels)), network.preprocessing)
    results: dict[str, Any] = {}
    for samples in modes:
        logits = logits_of(network, pixels, samples)
        fitted = validation.get(samples)
        for count in SAMPLES if samples else (1,):
            name = f"stoch-{count}" if samples else "det"
            first = None if fitted is None else (fitted[0][:, :, :count].flatten(1, 2), fitted[1])
            results[name] = measured(logits[:, :, :count].flatten(1, 2), labels, first)
        if outside is not None:
            count = min(samples, OOD_SAMPLES)
            foreign = logits_of(network, outside, count)
            inside_msp, outside_msp = (
                part.flatten(1, 2).double().softmax(-1).mean(dim=1).amax(-1).numpy()
                for part in (logits[:, :, : count or 1], foreign)
            )
            scores = ood_metrics(inside_msp, outside_msp, unit_weights(2 * len(labels)))
            results[name if not samples else f"stoch-{count}"]["svhn"] = {
                key: float(value[0]) for key, value in scores.items()
            }
    return results


def read_results(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a file of results; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Runs the unfinished trainings of a stage, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--dataset", choices=list(DATASETS), default="cifar10")
    parser.add_argument("--head", choices=["random", "probe"], default="random")
    parser.add_argument("--image-size", type=int, default=56)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only this arm")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results/adaptation.jsonl"
    )
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    base = {
        "dataset": arguments.dataset,
        "backbone": arguments.backbone.parent.name,
        "image_size": arguments.image_size,
        "head": arguments.head,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    while True:
        results = read_results(arguments.out)
        done = [result["run"] for result in results]
        pending = [
            run
            for run in STAGES[arguments.stage](base, results)
            if asdict(run) not in done and (not arguments.arm or run.arm in arguments.arm)
        ]
        if not pending:
            return
        run = pending[0]
        print(f"{len(pending)} to go: {run}", flush=True)
        state_file = arguments.out.with_name(f"{run.stage}-{run.arm}.state")
        result = result_of(run, arguments.backbone, arguments.data, state_file, arguments.device)
        result |= {"commit": commit, "device": arguments.device.type, "torch": torch.__version__}
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        state_file.unlink()


if __name__ == "__main__":
    main()
