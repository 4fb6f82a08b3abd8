"""The out-of-distribution sets of an evaluation, from the arguments of `--ood`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from eulerlora.errors import DataError, SettingsError
from training.data.datasets import read_ood_set
from training.data.labelled_images import LabelledImage, OodSet
from training.ood.corruptions import with_corruption
from training.ood.generated import digits, noise, rendered_text, solid_colours
from training.ood.shifts import SHIFTS
from training.ood.skin import plain_skin
from training.recipe.schema import OodGroup, OodSettings

GROUPS: tuple[OodGroup, ...] = get_args(OodGroup)
ALL_GENERATED = "generated"
RESERVED = ("test",)
"""Names of other sets in reports."""


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
class OodArgument:
    """A parsed argument of `--ood`. group: None if the argument names none."""

    group: OodGroup | None
    source: str

    @classmethod
    def parse(cls, argument: str) -> "OodArgument":
        """Returns the parts of `[far:|near:|shifted:]SOURCE`. Raises SettingsError."""
        prefix, colon, source = argument.partition(":")
        if not colon or "/" in prefix:
            return cls(None, argument)
        for group in GROUPS:
            if group == prefix:
                return cls(group, source)
        raise SettingsError(
            f"--ood {argument}: expected the group {', '.join(GROUPS[:-1])} or {GROUPS[-1]} before "
            f"the colon, got {prefix!r}; write ./{argument} for a path with a colon"
        )


def read_ood_sets(
    arguments: Sequence[str], test: Sequence[LabelledImage], skip_bad: bool = False
) -> list[OodSet]:
    """Returns the sets of all arguments, in their order, with distinct names.

    arguments: `[GROUP:]SOURCE`; a source is the name of a generated set, `generated` for all of
    them, or a folder or archive, which is `far` by default. test: the test part of the data set,
    from which the shifted and some other generated sets are made. All arguments are checked
    before an image is read. Raises SettingsError or DataError.
    """
    parsed = [OodArgument.parse(argument) for argument in arguments]
    chosen: dict[Path | str, OodGroup] = {}  # a generated set by name, another one by path
    for argument in parsed:
        for source, group in _sources(argument).items():
            if chosen.setdefault(source, group) != group:
                raise SettingsError(
                    f"--ood {source}: expected one group, got {chosen[source]} and {group}"
                )
    names = _distinct_names([source for source in chosen if isinstance(source, Path)])
    return [
        _read(source, names[source], group, skip_bad)
        if isinstance(source, Path)
        else OodSet(source, GENERATED[source].images(test), group=group, generated=True)
        for source, group in chosen.items()
    ]


def _sources(argument: OodArgument) -> dict[Path | str, OodGroup]:
    """Returns the group of every set of an argument."""
    if argument.source == ALL_GENERATED:
        return {
            name: generated.group
            for name, generated in GENERATED.items()
            if argument.group in (None, generated.group)
        }
    if argument.source in GENERATED:
        group = GENERATED[argument.source].group
        if argument.group not in (None, group):
            raise SettingsError(
                f"--ood {argument.group}:{argument.source}: expected group {group} for this "
                "generated set"
            )
        return {argument.source: group}
    path = Path(argument.source)
    if not argument.source or not path.exists():
        raise DataError(
            f"--ood {argument.source}: expected a folder, an archive or one of {ALL_GENERATED}, "
            f"{', '.join(GENERATED)}; got no such file"
        )
    return {path.absolute(): argument.group or "far"}


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
