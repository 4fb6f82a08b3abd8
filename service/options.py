"""Options that extensions add to `eulerlora serve`. Importing this module is cheap."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points

import click

_ENTRY_POINTS = "eulerlora.serve_options"


def extension_options() -> Mapping[str, Sequence[click.Option]]:
    """The options by the name of the extension (`service.extensions`), sorted.

    An entry point of the group names a sequence of options in a module that imports quickly:
    `eulerlora serve --help` needs it.
    """
    points = sorted(entry_points(group=_ENTRY_POINTS), key=lambda point: point.name)
    return {point.name: point.load() for point in points}


def options_with_variable() -> Iterator[click.Option]:
    """Those of these options that an environment variable sets too."""
    for options in extension_options().values():
        yield from (option for option in options if isinstance(option.envvar, str))
