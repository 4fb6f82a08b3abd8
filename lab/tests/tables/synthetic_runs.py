"""Synthetic finished runs of a table: config and report."""

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
from tests.conftest import DET
from training.optimisation.run import run_provenance
from training.reporting.tables import METRICS, OOD_METRICS

CPU = torch.device("cpu")
VIT_B_32 = BackboneSettings()
ANY_SHA256 = "0123456789abcdef" * 4
Metrics = Mapping[str, float | None]
DEFAULTS: Metrics = {}
NOTHING: Mapping[str, object] = {}


def finish(
    run: TableRun,
    det: Metrics = DEFAULTS,
    stoch: Metrics = DEFAULTS,
    *,
    data: str = "HAM10000, paper split",
    classes: int = 7,
    backbone: BackboneSettings = VIT_B_32,
    published: str | None = "ViT_B_32_Weights.IMAGENET1K_V1",
    training: Mapping[str, object] = NOTHING,
) -> Path:
    """Writes config and report of a run.

    `det` and `stoch` are metrics of the test part and of SVHN by name; 0.5 for other metrics.
    `training` is the result of the run in the provenance.
    """
    config = CheckpointConfig(
        name=run.recipe.name,
        backbone=BackboneConfig(settings=backbone, published=published, sha256=ANY_SHA256),
        adapters=AdapterConfig(settings=run.recipe.adapters, sha256=ANY_SHA256),
        classes=tuple(ClassName(name=f"c{i}", description=f"{i}") for i in range(classes)),
        preprocessing=Preprocessing(size=backbone.image_size),
        provenance=run_provenance(run.recipe, CPU) | {"data": data, "training": dict(training)},
    )
    evaluated = run.recipe.evaluation
    sampling = evaluated.samples, evaluated.sampler, evaluated.views
    report = {
        "data": f"{data}, test part",
        "modes": [
            _mode(DET, det),
            _mode(Options("stoch", *sampling, "float32"), stoch),
        ],
    }
    (run.out / "report").mkdir(parents=True)
    for folder in run.checkpoints:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.model_dump_json())
    (run.out / "report/report.json").write_text(json.dumps(report))
    return run.out


def _mode(options: Options, values: Metrics) -> dict[str, object]:
    return {
        "options": asdict(options),
        "metrics": _estimates(list(METRICS), values),
        "ood": {"SVHN": {"scores": {"msp": {"metrics": _estimates(list(OOD_METRICS), values)}}}},
    }


def _estimates(metrics: Sequence[str], values: Metrics) -> dict[str, dict[str, float] | None]:
    return {
        metric: None if value is None else {"value": value, "low": value, "high": value}
        for metric in metrics
        for value in [values.get(metric, 0.5)]
    }
