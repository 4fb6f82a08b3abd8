"""Synthetic finished runs of a table, on a tiny backbone: config and report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.sampling import Options
from eulerlora_lab.tables.table import TableRun
from tests.conftest import DET, TINY_BACKBONE
from training.optimisation.run import run_provenance
from training.reporting.tables import METRICS, OOD_METRICS

CPU = torch.device("cpu")
ANY_SHA256 = "0123456789abcdef" * 4
Metrics = Mapping[str, float | None]
DEFAULTS: Metrics = {}
NOTHING: Mapping[str, object] = {}
TRAINING = {"steps": 10, "images_per_second": 8.0, "seconds": 7200.0}
SETS = {"svhn": "far", "monkeypox": "near"}
OF_LOGITS = {f"{name}_mean_logits": 0.25 for name in ("accuracy", "ece", "nll", "brier")}


def finish(
    run: TableRun,
    det: Metrics = DEFAULTS,
    stoch: Metrics = DEFAULTS,
    *,
    data: str = "HAM10000, paper split",
    classes: int = 7,
    backbone: BackboneSettings = TINY_BACKBONE,
    published: str | None = None,
    training: Mapping[str, object] = NOTHING,
) -> Path:
    """Writes config and report of a run.

    `det` and `stoch` are metrics of the test part and of the sets outside by name, by default 0.5,
    for the mean logits 0.25 and for the AUROC of the feature distance 0.9. `training` is added to
    the result of the run in the provenance.
    """
    facts = run_provenance(run.recipe, CPU) | {"data": data, "training": TRAINING | dict(training)}
    config = CheckpointConfig(
        name=run.recipe.name,
        backbone=BackboneConfig(settings=backbone, published=published, sha256=ANY_SHA256),
        adapters=AdapterConfig(settings=run.recipe.adapters, sha256=ANY_SHA256),
        classes=tuple(ClassName(name=f"c{i}", description=f"{i}") for i in range(classes)),
        preprocessing=Preprocessing(size=backbone.image_size),
        provenance=facts,
    )
    evaluated = run.recipe.evaluation
    sampling = evaluated.samples, evaluated.sampler, evaluated.views
    report = {
        "data": f"{data}, test part",
        "ood_sets": {name: {"group": group} for name, group in SETS.items()},
        "modes": [
            _mode(run, DET, det),
            _mode(run, Options("stoch", *sampling, "float32"), stoch),
        ],
    }
    (run.out / "report").mkdir(parents=True)
    for folder in run.checkpoints:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.model_dump_json())
    (run.out / "report/report.json").write_text(json.dumps(report))
    return run.out


def _mode(run: TableRun, options: Options, values: Metrics) -> dict[str, object]:
    outside = {
        "msp": {"metrics": _estimates(list(OOD_METRICS), values)},
        "feature_distance": {"metrics": _estimates(list(OOD_METRICS), {"auroc": 0.9})},
    }
    return {
        "options": asdict(options),
        "trajectories": run.recipe.adapters.adapters * options.samples,
        "metrics": _estimates([*METRICS, *OF_LOGITS], OF_LOGITS | dict(values)),
        "ood": {name: {"scores": outside} for name in SETS},
    }


def _estimates(metrics: Sequence[str], values: Metrics) -> dict[str, dict[str, float] | None]:
    return {
        metric: None if value is None else {"value": value, "low": value, "high": value}
        for metric in metrics
        for value in [values.get(metric, 0.5)]
    }
