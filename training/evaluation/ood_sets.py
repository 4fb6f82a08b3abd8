"""The out-of-distribution sets of an evaluation, from the arguments of `--ood`.

A set may resemble what a checkpoint's training was shown. A checkpoint stores no images, so a set
is compared with the data sets of the provenance by its name and by the family of pictures that the
name belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.printable import printable
from training.data.dataset import DERMATOSCOPY, PHOTOGRAPHS
from training.data.datasets import read_ood_set
from training.data.images import LabelledImage, OodGroup, OodSet
from training.data.registry import DATA_SETS, IMAGES, OodSettings
from training.evaluation.report_schema import TEST

_GROUPS: tuple[OodGroup, ...] = get_args(OodGroup)
_ALL_GENERATED = "generated"
_ENTRY_POINTS = "eulerlora.ood_sets"

_FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(
        ("cifar", "imagenet", "imagewoof", "caltech", "stl10", "places", "coco"), PHOTOGRAPHS
    ),
    **dict.fromkeys(("isic", "ph2", "bcn20000"), DERMATOSCOPY),
}
"""What data sets beside those of the registry show, by a part of their names."""


@dataclass(frozen=True)
class GeneratedSet:
    """A set that needs no files: it draws pictures, or changes those of the test part.

    Installed distributions add sets: an entry point of the group `eulerlora.ood_sets` names a
    mapping of them.

    Attributes:
        images: Makes them from the test part.
    """

    group: OodGroup
    images: Callable[[Sequence[LabelledImage]], Sequence[LabelledImage]]


def _generated_sets() -> dict[str, GeneratedSet]:
    """The generated sets of all installed distributions by name."""
    points = entry_points(group=_ENTRY_POINTS)
    return {name: made for point in points for name, made in point.load().items()}


_OodSource = str | Path
"""The name of a generated set, or an absolute path."""


def ood_sources(arguments: Sequence[str]) -> dict[_OodSource, OodGroup]:
    """The group of every set by its source, in the order of the arguments of `--ood`.

    An argument is `[GROUP:]SET`; a set is the name of a generated one, `generated` for all of them,
    or a folder or archive, which is `far` by default.

    Raises:
        SettingsError: For an unknown group or a set in two groups.
        DataError: For an unknown set.
    """
    chosen: dict[_OodSource, OodGroup] = {}
    for argument in arguments:
        for source, group in _sources(argument).items():
            if chosen.setdefault(source, group) != group:
                raise SettingsError(
                    f"--ood {argument}: expected one group, got {chosen[source]} and {group}"
                )
    return chosen


def read_ood_sets(
    sources: Mapping[_OodSource, OodGroup], test: Sequence[LabelledImage], skip_bad: bool = False
) -> list[OodSet]:
    """The sets with distinct names; some generated ones are made from the test part.

    Raises:
        DataError: For a set without usable images, or without `skip_bad` with an unusable one.
    """
    names = _distinct_names([source for source in sources if isinstance(source, Path)])
    sets = []
    for source, group in sources.items():
        if isinstance(source, Path):
            settings = OodSettings(kind="images", path=str(source), group=group)
            stored = read_ood_set(settings, Path(), skip_bad)
            sets.append(replace(stored, name=names[source]))
        else:
            images = _generated_sets()[source].images(test)
            sets.append(OodSet(source, images, {}, group, True))
    return sets


def recipe_ood_sets(
    settings: Sequence[OodSettings], directory: Path, skip_bad: bool = False
) -> list[OodSet]:
    """The sets of a recipe with distinct names; errors as of `read_ood_sets`."""
    sources = {one: (directory / one.path).absolute() for one in settings if one.kind == IMAGES}
    names = _distinct_names([*sources.values()])
    sets = []
    for one in settings:
        stored = read_ood_set(one, directory, skip_bad)
        sets.append(replace(stored, name=names[sources[one]] if one in sources else stored.name))
    return sets


def _sources(argument: str) -> dict[_OodSource, OodGroup]:
    group, name = _parsed(argument)
    made: dict[_OodSource, OodGroup] = {key: of.group for key, of in _generated_sets().items()}
    if name == _ALL_GENERATED and made:
        return {generated: of for generated, of in made.items() if group in (None, of)}
    if name in made:
        if group not in (None, made[name]):
            raise SettingsError(
                f"--ood {argument}: expected group {made[name]} for this generated set, got {group}"
            )
        return {name: made[name]}
    path = Path(name)
    if not name or not path.exists():
        names = ", ".join((_ALL_GENERATED, *map(str, made)))
        others = f"one of {names}" if made else "with eulerlora-lab installed, a generated set"
        raise DataError(
            f"--ood {argument}: expected a folder, an archive or {others}; got no such file"
        )
    return {path.absolute(): group or "far"}


def _parsed(argument: str) -> tuple[OodGroup | None, str]:
    """Group and set of `[GROUP:]SET`; a prefix with a slash belongs to a path."""
    prefix, colon, name = argument.partition(":")
    if not colon or "/" in prefix:
        return None, argument
    for group in _GROUPS:
        if group == prefix:
            return group, name
    raise SettingsError(
        f"--ood {argument}: expected the group {', '.join(_GROUPS[:-1])} or {_GROUPS[-1]} before "
        f"the colon, got {prefix!r}; write ./{argument} for a path with a colon"
    )


def _distinct_names(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each absolute path: its last components that no other set has."""
    names: dict[Path, str] = {}
    reserved = {TEST, *_generated_sets()}
    for path in paths:
        taken = reserved | set(names.values())
        starts = range(len(path.parts) - 1, -1, -1)
        endings = (printable("/".join(path.parts[start:])) for start in starts)
        names[path] = next(name for name in endings if name not in taken)
    return names


def resemblance(ood_set: OodSet, config: CheckpointConfig) -> str | None:
    """What training was shown that the set is or resembles; None if none is known."""
    if ood_set.generated and ood_set.group == "shifted":
        return "the data set itself: changed test images"
    shown = list(_shown(config))
    own, family = _stem(ood_set.name).lower(), _family(ood_set.name)
    same = [role for name, role in shown if _stem(name).lower() == own]
    if same:
        return f"the same data set, used for {_joined(same, ' and ')}"
    related = [(name, role) for name, role in shown if family and _family(name) == family]
    if not related:
        return None
    names = _joined((_stem(name) for name, _ in related), ", ")
    return f"{family}, as {names}, used for {_joined((role for _, role in related), ' and ')}"


def _joined(texts: Iterable[str], separator: str) -> str:
    return separator.join(dict.fromkeys(texts))


def _shown(config: CheckpointConfig) -> Iterator[tuple[str, str]]:
    """Yields name (kind or path) and use of the data of all trainings."""
    origin, facts = config.backbone.provenance, config.provenance
    imported = origin.get("imported", {}).get("source")
    published = config.backbone.published or origin.get("fine_tuned_from") or imported
    if "stages" in origin:
        for data in (*origin["recipe"]["data"], *origin["recipe"].get("unlabelled", ())):
            yield _data_name(data), "pretraining"
    elif published is not None:
        yield published, "pretraining"
    if "outliers" in facts:
        yield facts["outliers"]["data"], "outlier exposure"
    if isinstance(recipe := facts.get("recipe"), Mapping):  # other programs store other facts
        yield _data_name(recipe["data"]), "training"


def _data_name(data: Mapping[str, Any]) -> str:
    """The path of a folder of images, or the kind of a published data set."""
    data_set = DATA_SETS.get(data["kind"])
    return data_set.kind if data_set is not None and data_set.published else str(data["path"])


def _family(name: str) -> str | None:
    kinds = ((kind, data_set.family) for kind, data_set in DATA_SETS.items())
    families = (*kinds, *_FAMILIES.items())
    return next((family for part, family in families if part in name.lower()), None)


def _stem(name: str) -> str:
    """The first component of a relative path without the suffixes of an archive; "" for "."."""
    return "".join(PurePosixPath(name).parts[:1]).split(".tar")[0]
