"""Which sets resemble the images that a checkpoint's training was shown, by their names.

Images cannot be compared, because a checkpoint stores none: the provenance names its data sets,
and a set is compared by its name and by the family of pictures that the name belongs to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from training.data.images import OodSet

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "everyday photographs": (
        "cifar", "imagenet", "imagenette", "imagewoof", "caltech", "stl10", "places", "coco",
    ),
    "dermatoscopic images": ("ham10000", "isic", "ph2", "bcn20000"),
    "house numbers": ("svhn",),
}  # fmt: skip
"""Parts of the names of data sets that show similar pictures."""


@dataclass(frozen=True)
class ShownData:
    """Data that training was shown. name: kind or path of the data. role: what it was used for."""

    name: str
    role: str


def shown_data(config: CheckpointConfig) -> list[ShownData]:
    """Returns the data of pretraining, outlier exposure and training in the provenance."""
    return [*_pretraining(config), *_training(config.provenance)]


def resemblance(ood_set: OodSet, config: CheckpointConfig) -> str | None:
    """Returns what training was shown that the set is or resembles; None if none is known."""
    if ood_set.generated and ood_set.group == "shifted":
        return "the data set itself: changed test images"
    shown = shown_data(config)
    name = _stem(ood_set.name).lower()
    same = [data for data in shown if _stem(data.name).lower() == name]
    if same:
        return f"the same data set, used for {_roles(same)}"
    family = _family(ood_set.name)
    related = [data for data in shown if family is not None and _family(data.name) == family]
    if related:
        names = ", ".join(dict.fromkeys(_stem(data.name) for data in related))
        return f"{family}, as {names}, used for {_roles(related)}"
    return None


def _pretraining(config: CheckpointConfig) -> Iterator[ShownData]:
    origin = config.backbone.provenance
    published = config.backbone.published or origin.get("fine_tuned_from")
    if published is not None and "stages" not in origin:
        yield ShownData(published, "pretraining")
    elif "stages" in origin:
        for data in origin["recipe"]["data"]:
            yield ShownData(_data_name(data), "pretraining")


def _training(facts: Mapping[str, Any]) -> Iterator[ShownData]:
    if "outliers" in facts:
        yield ShownData(facts["outliers"]["data"], "outlier exposure")
    if isinstance(recipe := facts.get("recipe"), Mapping):  # other programs store other facts
        yield ShownData(_data_name(recipe["data"]), "training")


def _data_name(data: Mapping[str, Any]) -> str:
    """Returns the path of an image folder, or the kind of a published data set."""
    return str(data["path"] if data["kind"] == "imagefolder" else data["kind"])


def _roles(shown: list[ShownData]) -> str:
    return " and ".join(dict.fromkeys(data.role for data in shown))


def _family(name: str) -> str | None:
    lower = name.lower()
    return next(
        (family for family, parts in FAMILIES.items() if any(p in lower for p in parts)), None
    )


def _stem(name: str) -> str:
    """Returns the first component of a relative path, without the suffixes of an archive; "" for
    the data directory itself.
    """
    return "".join(PurePosixPath(name).parts[:1]).split(".tar")[0]
