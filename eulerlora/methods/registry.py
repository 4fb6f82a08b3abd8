"""All methods, by name: the paper's, and those that installed distributions add.

A distribution adds a method with an entry point of the group `eulerlora.methods`, which has the
name of the method and refers to its subclass of `Method`. Entry points are loaded when the schema
of a config or a recipe is first used.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema

from eulerlora.methods.eulerlora import EulerLoRAMethod, EulerLoRASettings
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import AnyMethod, MethodSettings, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError

_ENTRY_POINTS = "eulerlora.methods"

DEFAULT_METHOD = EulerLoRASettings()
"""The method of recipes and configs that name none."""


@cache
def methods() -> dict[str, type[AnyMethod]]:
    """Classes of all methods by name, the paper's first.

    Raises:
        SettingsError: With the distribution, for an entry point that cannot be imported, that is no
            method of its name, or whose name another method has.
    """
    by_name: dict[str, type[AnyMethod]] = {DEFAULT_METHOD.name: EulerLoRAMethod}
    for point in sorted(entry_points(group=_ENTRY_POINTS), key=lambda point: point.name):
        if point.name in by_name:
            raise SettingsError(f"{_origin(point)}: expected a new name, which no method has yet")
        by_name[point.name] = _loaded(point)
    return by_name


def method_type(settings: MethodSettings) -> type[AnyMethod]:
    return methods()[settings.name]


def build_network(
    backbone: VisionTransformer,
    adapters: AdapterSettings,
    classes: int,
    preprocessing: Preprocessing | None = None,
    method: MethodSettings = DEFAULT_METHOD,
) -> AdaptedVisionTransformer:
    """A frozen backbone with the tensors of a method, zero.

    A `preprocessing` of None does not change the colours of images.
    """
    shape = NetworkShape(adapters, backbone.settings, classes)
    built = method_type(method)(method, shape)
    return AdaptedVisionTransformer(backbone, built, preprocessing)


def _loaded(point: EntryPoint) -> type[AnyMethod]:
    try:
        method = point.load()
    except Exception as error:  # whatever the module of another distribution raises
        raise SettingsError(
            f"{_origin(point)}: expected a method that can be imported, got "
            f"{type(error).__name__}: {error}"
        ) from error
    named = getattr(method, "method_name", None)
    if named is None or named() != point.name:
        raise SettingsError(
            f"{_origin(point)}: expected a subclass of Method with the name {point.name!r}, got "
            f"{point.value}"
        )
    kind: type[AnyMethod] = method
    return kind


def _origin(point: EntryPoint) -> str:
    distribution = "an unknown distribution" if point.dist is None else point.dist.name
    return f"method {point.name!r} of {distribution}"


def _any_settings(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
    kinds = [method.settings_type for method in methods().values()]
    kind: Any = kinds[0]
    if len(kinds) > 1:
        kind = Annotated[Union[tuple(kinds)], Field(discriminator="name")]  # noqa: UP007
    return handler.generate_schema(kind)


NamedMethod = Annotated[MethodSettings, GetPydanticSchema(_any_settings)]
"""The settings of any method, which their name selects."""
