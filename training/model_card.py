"""The model card that goes with a checkpoint as its README.md."""

from collections.abc import Mapping
from typing import Any

from eulerlora.config import CheckpointConfig
from training.evaluate import Report
from training.report import markdown
from training.sensitivity import Sensitivity

INTENDED_USE = {
    "ham10000": (
        "For demonstration and research. It is not a medical device, has not been clinically "
        "validated and must not be used to decide on anyone's care. It knows only the seven "
        "classes below, as seen through a dermatoscope at the sites that collected HAM10000; "
        "other skin types, cameras and conditions are outside of what it has seen."
    ),
}
RESEARCH = (
    "For research on images like those it was trained on. Validate it on your own data before you "
    "rely on an answer."
)
TINY_IMAGES = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
DATA_LICENCE = {
    "ham10000": (
        "HAM10000 (Tschandl, Rosendahl and Kittler, Scientific Data 5, 180161, 2018), "
        "CC BY-NC 4.0: these weights are for non-commercial use, with attribution."
    ),
    "tiny-imagenet": (
        "Tiny ImageNet (Stanford CS231n, 2015), a part of ImageNet (Deng et al., CVPR 2009), for "
        "non-commercial research."
    ),
    "cifar10": f"CIFAR-10 ({TINY_IMAGES}).",
    "cifar100": f"CIFAR-100 ({TINY_IMAGES}).",
    "svhn": (
        "SVHN (Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, "
        "2011), for non-commercial use."
    ),
    "imagefolder": "That of the training images, which are not part of this checkpoint.",
}


def model_card(config: CheckpointConfig, report: Report | None) -> str:
    """Markdown: use, classes, figures (where there is a report), data, training, settings."""
    kind = config.provenance["recipe"]["data"]["kind"]
    adapters = config.adapters.settings
    backbone = config.backbone
    shape = backbone.settings
    sections = [
        f"# {config.name}",
        f"An EulerLoRA checkpoint: {adapters.adapters} adapters of rank {adapters.rank} on a "
        f"frozen Vision Transformer ({shape.layers} blocks of width {shape.width}, "
        f"{shape.image_size} x {shape.image_size} pixels, patches of {shape.patch_size}).",
        "## Intended use",
        INTENDED_USE.get(kind, RESEARCH),
        "## Classes",
        "\n".join(f"- `{each.name}`: {each.description}" for each in config.classes),
        "## Figures",
        "Not evaluated yet." if report is None else f"{_missed(report)}{markdown(report)}",
        "## Data",
        f"Trained on {config.provenance['data']} (train part){_skipped(config)}. "
        f"{DATA_LICENCE[kind]}",
        "## Training",
        _training(config),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _skipped(config: CheckpointConfig) -> str:
    count = config.provenance.get("skipped", {}).get("count", 0)
    return f"; {count:,} images were left out as unusable" if count else ""


def _missed(report: Report) -> str:
    """A plain warning of the classes that no mode ever recognised; empty where there are none."""
    names = [
        name
        for name in report.modes[0].sensitivity
        if all(_misses_all(each.sensitivity[name]) for each in report.modes)
    ]
    if not names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names)
    return f"**It recognised none of the test images of {listed}.**\n\n"


def _misses_all(found: Sensitivity | None) -> bool:
    return found is not None and found.hits == 0


def _training(config: CheckpointConfig) -> str:
    facts, recipe = config.provenance, config.provenance["recipe"]
    lines = [
        f"- Recipe `{recipe['name']}`, seed {facts['seed']}, commit {facts['commit']}, "
        f"{facts['date']}, on {facts['hardware']}.",
        f"- Adapters: {_run(facts['training'])}.",
    ]
    if config.backbone.published:
        lines.append(f"- Backbone: torchvision's `{config.backbone.published}`, frozen.")
    else:
        origin = config.backbone.provenance
        stages = ", then ".join(_run(stage) for stage in origin["stages"])
        lines.append(
            f"- Backbone: recipe `{origin['recipe']['name']}` on {origin['data']}: {stages}; "
            f"{_top_one(origin)}; frozen after that."
        )
    lines.append("- All settings are in `config.json`, the OOD thresholds with their data too.")
    return "\n".join(lines)


def _top_one(origin: Mapping[str, Any]) -> str:
    """Such as "top-1 0.574 on the test part of squares"."""
    found = origin.get("top_one") or {origin["data"]: origin["test_accuracy"]}  # one set, earlier
    return ", ".join(
        f"top-1 {share:.3f} on the test part of {name}" for name, share in found.items()
    )


def _run(fitted: Mapping[str, Any]) -> str:
    return f"{fitted['steps']:,} steps in {fitted['seconds'] / 60:.0f} min"
