"""Does `eulerlora select` choose better lesions to label than chance? Learning curves on HAM10000.

    python -m studies.selection --data DIR --backbone FILE --features FILE --out FILE

studies/README.md has the protocol, fixed before the runs. Prints tables; --out has all curves.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabulate import tabulate

from eulerlora.checkpoint.weights import at_image_size, load_backbone
from eulerlora.images.preprocess import normalise
from eulerlora.scores.uncertainty import summarise
from eulerlora_contract.progress import track
from studies.tables.comparison import holm
from training.adaptation.probe import INVERSE_PENALTY
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.data.images import LabelledImage, pixel_batches
from training.evaluation.intervals import Floats, Ints, unit_weights
from training.evaluation.metrics import macro_auroc
from training.evaluation.selection import CRITERIA, most_uncertain, spread

SEEDS = (0, 42, 1206, 2205, 25008)
FIRST, BATCH, LAST = 100, 50, 500
"""Numbers of labelled lesions: at first, drawn at random; in a batch; and at last."""
_SHOWN = (100, 150, 300, 500)
COMMITTEE = 8
RANDOM, _RANDOM_DRAWS = "random", 5
_DIVERSE = ", diverse"
STRATEGIES = (*(name + _DIVERSE for name in CRITERIA), *CRITERIA)
METRICS = ("macro_auroc", "accuracy")
_IMAGE_SIZE, _IMAGES_PER_BATCH = 112, 64


def one_image_per_lesion(images: Sequence[LabelledImage]) -> list[LabelledImage]:
    return list({image.cluster_name: image for image in reversed(images)}.values())


@torch.inference_mode()
def features_of(images: Sequence[LabelledImage], backbone: Path) -> Floats:
    """(n, width) of unit length, as `eulerlora select` compares them."""
    file = load_backbone(backbone)
    network = at_image_size(file.backbone, _IMAGE_SIZE).eval()
    preprocessing = file.preprocessing.at_size(_IMAGE_SIZE)
    batches = pixel_batches(images, preprocessing, _IMAGES_PER_BATCH)
    steps = track(batches, "features", "batches", -(-len(images) // _IMAGES_PER_BATCH))
    pooled = torch.cat([network(normalise(pixels, preprocessing)) for pixels in steps])
    features: Floats = torch.nn.functional.normalize(pooled.double(), dim=1).numpy()
    return features


def fitted_probabilities(features: Floats, labels: Ints, others: Floats, classes: int) -> Floats:
    """(m, classes) probabilities of m others by a linear probe; 0 for a class without labels."""
    probabilities = np.zeros((len(others), classes))
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=1000))
    probabilities[:, np.unique(labels)] = probe.fit(features, labels).predict_proba(others)
    return probabilities


def learning_curve(
    strategy: str, draw: int, seed: int, pool: tuple[Floats, Ints], measured: tuple[Floats, Ints]
) -> Iterator[dict[str, Any]]:
    """Yields the metrics and the labelled lesions of each class, batch by batch."""
    features, labels = pool
    classes = int(labels.max()) + 1
    first = np.random.default_rng(seed)  # the same lesions for all strategies
    generator = np.random.default_rng([seed, draw])
    labelled = first.choice(len(labels), FIRST, replace=False)
    while True:
        probabilities = fitted_probabilities(
            features[labelled], labels[labelled], measured[0], classes
        )
        yield {
            "labelled": len(labelled),
            "macro_auroc": float(
                macro_auroc(probabilities, measured[1], unit_weights(len(measured[1])))[0]
            ),
            "accuracy": float((probabilities.argmax(axis=1) == measured[1]).mean()),
            "by_class": np.bincount(labels[labelled], minlength=classes).tolist(),
        }
        if len(labelled) >= LAST:
            return
        rest = np.setdiff1d(np.arange(len(labels)), labelled)
        if strategy == RANDOM:
            batch = generator.choice(len(rest), BATCH, replace=False)
        else:
            resamples = (generator.choice(labelled, len(labelled)) for _ in range(COMMITTEE))
            committee = [
                fitted_probabilities(features[drawn], labels[drawn], features[rest], classes)
                for drawn in resamples
            ]
            answers = summarise(torch.from_numpy(np.stack(committee, axis=1)))
            scores = CRITERIA[strategy.removesuffix(_DIVERSE)](answers).numpy()
            if strategy.endswith(_DIVERSE):
                batch = spread(scores, features[rest], BATCH, seed)
            else:
                batch = most_uncertain(scores, BATCH)
        labelled = np.concatenate([labelled, rest[batch]])


def differences(curves: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yields a row for each strategy: its mean over batches less that of random choice.

    With 95% intervals of Student's t over the seeds, and p values, corrected by Holm except for the
    primary endpoint, which is the first.
    """

    def by_seed(strategy: str, metric: str) -> list[float]:
        values: dict[int, list[float]] = {seed: [] for seed in SEEDS}
        for point in curves:
            if point["strategy"] == strategy and point["labelled"] > FIRST:
                values[point["seed"]].append(point[metric])
        return [float(np.mean(of_seed)) for of_seed in values.values()]

    endpoints = list(itertools.product(STRATEGIES, METRICS))
    tests = [stats.ttest_rel(by_seed(*of), by_seed(RANDOM, of[1])) for of in endpoints]
    primary, *secondary = [test.pvalue for test in tests]
    cells = []
    for endpoint, test, p in zip(endpoints, tests, [primary, *holm(secondary)], strict=True):
        low, high = test.confidence_interval()
        mean = np.mean(by_seed(*endpoint)) - np.mean(by_seed(RANDOM, endpoint[1]))
        cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f}), p {p:.2g}")
    for index, strategy in enumerate(STRATEGIES):
        yield [strategy, *cells[len(METRICS) * index :][: len(METRICS)]]


def main() -> None:
    """Runs all strategies and prints their paired differences from random choice."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True, help="kept, a safetensors file")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines of all curves")
    arguments = parser.parse_args()
    images = read_dataset(DataSettings(kind="ham10000", split="lesion-validation"), arguments.data)
    lesions = {part: one_image_per_lesion(of) for part, of in images.parts.items()}
    labels = {part: np.array([image.label for image in of]) for part, of in lesions.items()}
    if not arguments.features.exists():
        features = {part: features_of(of, arguments.backbone) for part, of in lesions.items()}
        save_file(features, arguments.features)
    features = load_file(arguments.features)
    pool, measured = ((features[part], labels[part]) for part in ("train", "test"))
    curves = []
    runs = [(RANDOM, draw) for draw in range(_RANDOM_DRAWS)] + [(name, 0) for name in STRATEGIES]
    with arguments.out.open("w", encoding="utf-8") as file:
        for seed, (strategy, draw) in track(
            list(itertools.product(SEEDS, runs)), "curves", "curves", len(SEEDS) * len(runs)
        ):
            for point in learning_curve(strategy, draw, seed, pool, measured):
                curves.append({"strategy": strategy, "draw": draw, "seed": seed, **point})
                file.write(json.dumps(curves[-1]) + "\n")
    print(f"{len(pool[1]):,} lesions to choose from, {len(measured[1]):,} measured on")
    print(tabulate(differences(curves), ["less random", *METRICS], tablefmt="github"))
    rows = []
    for strategy, labelled in itertools.product((RANDOM, *STRATEGIES), _SHOWN):
        points = [p for p in curves if (p["strategy"], p["labelled"]) == (strategy, labelled)]
        means = [f"{np.mean([p[metric] for p in points]):.3f}" for metric in METRICS]
        counts = np.mean([p["by_class"] for p in points], axis=0)
        rows.append([strategy, labelled, *means, *(f"{count:.0f}" for count in counts)])
    headers = ["chosen by", "labels", *METRICS, *images.class_names]
    print(tabulate(rows, headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
