"""What refitted heads of a site are worth, by the number of local lesions.

    python -m eulerlora_lab.site_heads --data DIR --cache FOLDER --out lab/results [--splits 20]

DIR holds `ph2.tar` and `pad-ufes-20.tar`; FOLDER keeps the outputs of the embedded checkpoint for
them. Writes `site-heads.json` and its chart, `site-heads.svg`, and prints its tables.
lab/docs/protocols.md has the protocol.
"""

import argparse
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, load_checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.nn.method import AdapterHeads
from eulerlora.scores.trajectories import Trajectories
from eulerlora_clinic.fitting.heads import (
    HeadChange,
    HeadComparison,
    refit_heads,
    with_changed_heads,
)
from eulerlora_clinic.fitting.site import MIN_HEADS
from eulerlora_contract.printable import markdown_table
from eulerlora_contract.sampling import MODES, Mode, Options
from training.calibration.thresholds import group_means, image_nll
from training.data.dataset import LabelTable
from training.data.local_images import read_local_images
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.evaluation.intervals import Bools, Floats, Ints
from training.recipe.archives import read_archive_labels

_ARCHIVES = ("ph2", "pad-ufes-20")
_LESIONS = (20, 50, 100, 200)
_HOLD_OUT, _SENSITIVITY = 0.5, 0.95
_ARMS = ("thresholds only", "refitted", "site fit")
_METRICS = ("malignant AUROC", "melanoma AUROC", "specificity", "NLL")


@dataclass(frozen=True)
class _Archive:
    """The outputs of the checkpoint, at temperature 1, for n labelled images.

    Attributes:
        modes: By mode; stoch has 4 samples.
        labels: (n,).
        lesions: (n,) indices.
        patients: (n,) indices, which the halves of a split do not share.
    """

    modes: Mapping[Mode, Trajectories]
    labels: Ints
    lesions: Ints
    patients: Ints

    @property
    def units(self) -> Units:
        return Units.of_lesions(self.lesions, self.labels)

    def images(self, chosen: Bools) -> "_Archive":
        modes = {
            mode: outputs.images(torch.from_numpy(chosen)) for mode, outputs in self.modes.items()
        }
        return _Archive(modes, self.labels[chosen], self.lesions[chosen], self.patients[chosen])


def _read_archive(name: str, data: Path, cache: Path) -> _Archive:
    """Reads the outputs for an archive, without images of no class, or computes and stores them."""
    path = cache / f"{name}.pt"
    if not path.exists():
        checkpoint, labels = load_checkpoint(DEFAULT_CHECKPOINT), read_archive_labels(name)
        unscaled = {"temperature": 1.0, "stoch_temperature": None}
        config = checkpoint.config.model_copy(update=unscaled)
        model = EulerLoRA.of(replace(checkpoint, config=config), "cpu")
        lesion = None if labels.lesion is None else re.compile(labels.lesion)
        images = read_local_images(
            data / f"{name}.tar",
            model.config.classes,
            LabelTable(renamed=dict(labels.labels)),
            outside=labels.outside,
            lesion=lesion,
        ).images
        options = [model.options(mode) for mode in MODES]
        outputs = predict_all(model, images, options, name)
        stored = {
            "modes": {mode: vars(of_mode) for mode, of_mode in zip(MODES, outputs, strict=True)},
            "labels": [image.label for image in images],
            "lesions": [image.lesion or image.cluster_name for image in images],
        }
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(stored, path)
    stored = torch.load(path, weights_only=True)
    lesions = stored["lesions"]
    patients = [lesion.partition("_")[0] if name == "pad-ufes-20" else lesion for lesion in lesions]
    archive = _Archive(
        {mode: Trajectories(**tensors) for mode, tensors in stored["modes"].items()},
        np.array(stored["labels"]),
        np.unique(lesions, return_inverse=True)[1],
        np.unique(patients, return_inverse=True)[1],
    )
    return archive.images(archive.labels >= 0)


@dataclass(frozen=True)
class _Study:
    """The shipped heads, the options and temperatures of the modes, and the indices of classes."""

    heads: AdapterHeads
    options: Sequence[Options]
    temperatures: Mapping[Mode, float]
    target: Sequence[int]
    melanoma: int

    @classmethod
    def of_default(cls) -> "_Study":
        checkpoint = load_checkpoint(DEFAULT_CHECKPOINT)
        config, target = checkpoint.config, checkpoint.config.target
        assert target is not None
        indices = [config.class_names.index(name) for name in target.classes]
        return cls(
            checkpoint.network.heads,
            [config.options(mode) for mode in MODES],
            config.temperatures,
            indices,
            config.class_names.index("mel"),
        )

    def outputs(self, archive: _Archive, mode: Mode, change: HeadChange | None) -> Trajectories:
        outputs = archive.modes[mode]
        if change is not None:
            every = np.arange(len(archive.labels))
            outputs = with_changed_heads(outputs, self.heads, [(every, change)])
        return outputs.at(self.temperatures[mode])

    def refit(self, archive: _Archive) -> HeadChange | None:
        """The change that `site fit` tries, or None if cross-validation chooses none."""
        modes = [archive.modes["stoch"], archive.modes["det"]]
        labels, temperature = torch.from_numpy(archive.labels), self.temperatures["stoch"]
        fit = refit_heads(modes, self.heads, labels, archive.units, temperature)
        return None if fit is None else fit.change

    def site_fit(self, local: _Archive, generator: np.random.Generator) -> HeadChange | None:
        """The change that `site fit --hold-out` keeps, or None."""
        order = generator.permutation(np.unique(local.lesions))
        measured = np.isin(local.lesions, order[: math.ceil(_HOLD_OUT * len(order))])
        held_out, fitted = local.images(measured), local.images(~measured)
        if len(np.unique(fitted.lesions)) < MIN_HEADS:
            return None
        change = self.refit(fitted)
        if change is None:
            return None
        old, new = (self.outputs(held_out, "stoch", of) for of in (None, change))
        comparison = HeadComparison.of(
            old.flat_log_probabilities,
            new.flat_log_probabilities,
            torch.from_numpy(held_out.labels),
            held_out.units,
        )
        before, after = (self.metrics(held_out, outputs)[_METRICS[0]] for outputs in (old, new))
        return change if comparison.bound > 0 and after >= before else None

    def metrics(self, archive: _Archive, outputs: Trajectories) -> dict[str, float]:
        """Results by lesion, whose probability is the mean of its images."""
        probabilities = outputs.flat_log_probabilities.exp().mean(dim=1).numpy()
        labels = group_means(archive.labels.astype(np.float64), archive.lesions)
        malignant, melanoma = np.isin(labels, self.target), labels == self.melanoma
        score = group_means(probabilities[:, self.target].sum(axis=1), archive.lesions)
        of_melanoma = group_means(probabilities[:, self.melanoma], archive.lesions)
        true = torch.from_numpy(archive.labels)
        nll = image_nll(outputs.flat_log_probabilities, true, 1.0)
        return {
            "malignant AUROC": float(roc_auc_score(malignant, score)),
            "melanoma AUROC": float(roc_auc_score(melanoma, of_melanoma)),
            "specificity": _specificity(score, malignant),
            "NLL": float(group_means(nll, archive.lesions).mean()),
        }


def _specificity(scores: Floats, positive: Bools) -> float:
    """The share of others below the highest threshold that finds `_SENSITIVITY` of these."""
    ranked = np.sort(scores[positive])
    threshold = ranked[math.floor((1 - _SENSITIVITY) * len(ranked) + 1e-9)]
    return float((scores[~positive] < threshold).mean())


def _results(study: _Study, archive: _Archive, splits: int) -> Iterator[dict[str, Any]]:
    """Yields the metrics of every split, number of lesions and arm."""
    for split in range(splits):
        generator = np.random.default_rng(split)
        patients = generator.permutation(np.unique(archive.patients))
        half = np.isin(archive.patients, patients[: len(patients) // 2])
        test, local = archive.images(~half), archive.images(half)
        order = [
            lesion
            for patient in patients
            for lesion in np.unique(local.lesions[local.patients == patient])
        ]
        for count in _LESIONS:
            if count > len(order):
                continue
            part = local.images(np.isin(local.lesions, order[:count]))
            changes = {
                "thresholds only": None,
                "refitted": study.refit(part),
                "site fit": study.site_fit(part, generator),
            }
            for arm, change in changes.items():
                for options in study.options:
                    yield {
                        "split": split,
                        "lesions": count,
                        "arm": arm,
                        "options": asdict(options),
                        "changed": change is not None,
                        **study.metrics(test, study.outputs(test, options.mode, change)),
                    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means, and the 5% and 95% quantiles of splits, by number of lesions, arm and options.

    A gain is the difference from `thresholds only` in the same split.
    """

    def over_splits(values: Sequence[float]) -> list[float]:
        low, high = np.quantile(values, [0.05, 0.95])
        return [round(float(value), 4) for value in (np.mean(values), low, high)]

    summaries = []
    for count, arm, mode in itertools.product(_LESIONS, _ARMS, MODES):
        of_arm, base = (
            [
                row
                for row in rows
                if (row["lesions"], row["arm"], row["options"]["mode"]) == (count, of, mode)
            ]
            for of in (arm, _ARMS[0])
        )
        if of_arm:
            changed = sum(row["changed"] for row in of_arm)
            options = of_arm[0]["options"]
            entry = {"lesions": count, "arm": arm, "options": options, "changed": changed}
            for metric in _METRICS:
                values = [row[metric] for row in of_arm]
                gains = [
                    row[metric] - other[metric] for row, other in zip(of_arm, base, strict=True)
                ]
                entry |= {metric: over_splits(values), f"gain, {metric}": over_splits(gains)}
            summaries.append(entry)
    return summaries


def _table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The metrics of mode stoch by number of lesions and arm, as Markdown."""
    rows = [
        [
            "" if entry["arm"] == _ARMS[0] else str(entry["lesions"]),
            entry["arm"] + ("" if entry["arm"] != _ARMS[2] else f", kept in {entry['changed']}"),
            *(
                f"{value:.3f} ({low:.3f} to {high:.3f})"
                for value, low, high in (entry[metric] for metric in _METRICS)
            ),
        ]
        for entry in summaries
        if entry["options"]["mode"] == "stoch"
        and (entry["arm"] != _ARMS[0] or entry["lesions"] == _LESIONS[0])
    ]
    return markdown_table(["local lesions", "arm", *_METRICS], rows, text_columns=2)


def _draw(found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draws the metrics of mode stoch against the number of lesions, with the quantiles."""
    with matplotlib.rc_context(
        {"svg.hashsalt": "site-heads", "svg.fonttype": "none", "font.size": 8}
    ):
        figure, axes = plt.subplots(len(found), 3, figsize=(9, 5), sharex=True, sharey="col")
        for row, (name, summaries) in zip(axes, found.items(), strict=True):
            for axis, metric in zip(row, _METRICS, strict=False):
                for arm, colour in zip(_ARMS, ("#6e7681", "#3f51b5", "#b3261e"), strict=True):
                    points = [
                        (entry["lesions"], *entry[metric])
                        for entry in summaries
                        if entry["options"]["mode"] == "stoch" and entry["arm"] == arm
                    ]
                    lesions, mean, low, high = zip(*points, strict=True)
                    axis.plot(lesions, mean, "o-", color=colour, markersize=3, label=arm)
                    axis.fill_between(lesions, low, high, color=colour, alpha=0.12, linewidth=0)
                axis.set(
                    xscale="log", xticks=_LESIONS, xticklabels=_LESIONS, title=f"{name}: {metric}"
                )
                axis.minorticks_off()
                axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel("local lesions")
        axes[0][0].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--data", "--cache", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--splits", type=int, default=20, help="random halves of an archive")
    options = parser.parse_args()
    study = _Study.of_default()
    found = {
        name: _summary(
            list(_results(study, _read_archive(name, options.data, options.cache), options.splits))
        )
        for name in _ARCHIVES
    }
    lines = ",\n".join(
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
        for name, rows in found.items()
    )
    (options.out / "site-heads.json").write_text(f"{{\n{lines}\n}}\n")
    _draw(found, options.out / "site-heads.svg")
    for name, summaries in found.items():
        print(f"{name}\n\n{_table(summaries)}\n")


if __name__ == "__main__":
    main()
