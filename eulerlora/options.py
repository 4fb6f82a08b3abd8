"""Types of options that several commands have."""

from typing import Any

import click

from eulerlora.settings import AUTO, Auto


class Samples(click.ParamType[int | Auto]):
    """A number of samples per adapter, or `auto`."""

    name = "1-64|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Auto:
        if value == AUTO:
            return AUTO
        found: int = click.IntRange(1, 64).convert(value, param, ctx)
        return found
