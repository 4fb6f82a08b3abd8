"""The out-of-distribution sets of an evaluation, from the arguments of `--ood`.

A set may resemble what a checkpoint's training was shown. A checkpoint stores no images, so a set
is compared with the data sets of the provenance by its name and by the family of pictures that the
name belongs to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.errors import DataError, SettingsError
from training.data.datasets import read_ood_set
from training.data.images import LabelledImage, OodSet
from training.evaluation.corruptions import SHIFTS, with_corruption
from training.evaluation.generated_images import (
    digits,
    noise,
    plain_skin,
    rendered_text,
    solid_colours,
)
from training.recipe.schema import OodGroup, OodSettings

GROUPS: tuple[OodGroup, ...] = get_args(OodGroup)
ALL_GENERATED = "generated"
RESERVED = ("test",)
"""Names of other sets in reports."""


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "everyday photographs": (
        "cifar", "imagenet", "imagenette", "imagewoof", "caltech", "stl10", "places", "coco",
    ),
    "dermatoscopic images": ("ham10000", "isic", "ph2", "bcn20000"),
    "house numbers": ("svhn",),
}  # fmt: skip
"""Parts of the names of data sets that show similar pictures."""


@dataclass(frozen=True)
class GeneratedSet:
    """A set without files. images: makes it from the test part of the data set."""

    group: OodGroup
    images: Callable[[Sequence[LabelledImage]], Sequence[LabelledImage]]


GENERATED: Mapping[str, GeneratedSet] = {
    "noise": GeneratedSet("far", lambda _: noise()),
    "solid-colours": GeneratedSet("far", lambda _: solid_colours()),
    "rendered-text": GeneratedSet("far", lambda _: rendered_text()),
    "digits-8x8": GeneratedSet("far", lambda _: digits()),
    "plain-skin": GeneratedSet("far", plain_skin),
    **{
        name: GeneratedSet("shifted", partial(with_corruption, corruption=shift))
        for name, shift in SHIFTS.items()
    },
}
"""Sets by name; the shifted ones show the lesions of the test part."""


@dataclass(frozen=True)
class OodSource:
    """Where a set comes from. source: the name of a generated set, or an absolute path."""

    source: str | Path
    group: OodGroup


def ood_sources(arguments: Sequence[str]) -> list[OodSource]:
    """Returns the sources of all sets, in the order of the arguments and each once.

    arguments: `[GROUP:]SET`; a set is the name of a generated one, `generated` for all of them, or
    a folder or archive, which is `far` by default. Raises SettingsError for an unknown group or a
    set in two groups, DataError for an unknown set.
    """
    chosen: dict[str | Path, OodSource] = {}
    for argument in arguments:
        for source in _sources(argument):
            other = chosen.setdefault(source.source, source)
            if other != source:
                raise SettingsError(
                    f"--ood {argument}: expected one group, got {other.group} and {source.group}"
                )
    return list(chosen.values())


def read_ood_sets(
    sources: Sequence[OodSource], test: Sequence[LabelledImage], skip_bad: bool = False
) -> list[OodSet]:
    """Returns the sets with distinct names.

    test: the test part of the data set, from which the shifted and some other generated sets are
    made. skip_bad: skip unusable images. Raises DataError.
    """
    names = _distinct_names([item.source for item in sources if isinstance(item.source, Path)])
    return [
        _read(item.source, names[item.source], item.group, skip_bad)
        if isinstance(item.source, Path)
        else OodSet(item.source, GENERATED[item.source].images(test), {}, item.group, True)
        for item in sources
    ]


def _sources(argument: str) -> list[OodSource]:
    """Returns the sources of one argument."""
    group, name = _parsed(argument)
    if name == ALL_GENERATED:
        return [
            OodSource(generated, made.group)
            for generated, made in GENERATED.items()
            if group in (None, made.group)
        ]
    if name in GENERATED:
        made = GENERATED[name]
        if group not in (None, made.group):
            raise SettingsError(
                f"--ood {argument}: expected group {made.group} for this generated set, got {group}"
            )
        return [OodSource(name, made.group)]
    path = Path(name)
    if not name or not path.exists():
        raise DataError(
            f"--ood {argument}: expected a folder, an archive or one of {ALL_GENERATED}, "
            f"{', '.join(GENERATED)}; got no such file"
        )
    return [OodSource(path.absolute(), group or "far")]


def _parsed(argument: str) -> tuple[OodGroup | None, str]:
    """Returns group and set of `[GROUP:]SET`; a prefix with a slash belongs to a path."""
    prefix, colon, name = argument.partition(":")
    if not colon or "/" in prefix:
        return None, argument
    for group in GROUPS:
        if group == prefix:
            return group, name
    raise SettingsError(
        f"--ood {argument}: expected the group {', '.join(GROUPS[:-1])} or {GROUPS[-1]} before "
        f"the colon, got {prefix!r}; write ./{argument} for a path with a colon"
    )


def _read(path: Path, name: str, group: OodGroup, skip_bad: bool) -> OodSet:
    settings = OodSettings(kind="images", path=str(path), group=group)
    return replace(read_ood_set(settings, Path(), skip_bad), name=name)


def _distinct_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Returns a name for each absolute path: its last components that no other set has."""
    names: dict[Path, str] = {}
    for path in paths:
        taken = {*RESERVED, *GENERATED, *names.values()}
        endings = ("/".join(path.parts[start:]) for start in range(len(path.parts) - 1, -1, -1))
        names[path] = next(name for name in endings if name not in taken)
    return names


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
        for data in (*origin["recipe"]["data"], *origin["recipe"].get("unlabelled", ())):
            yield ShownData(_data_name(data), "pretraining")


def _training(facts: Mapping[str, Any]) -> Iterator[ShownData]:
    if "outliers" in facts:
        yield ShownData(facts["outliers"]["data"], "outlier exposure")
    if isinstance(recipe := facts.get("recipe"), Mapping):  # other programs store other facts
        yield ShownData(_data_name(recipe["data"]), "training")


def _data_name(data: Mapping[str, Any]) -> str:
    """Returns the path of a folder of images, or the kind of a published data set."""
    return str(data["path"] if data["kind"] in ("imagefolder", "images") else data["kind"])


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
