"""All methods, by name: the built-in ones, and those of other installed distributions.

A distribution adds a method with an entry point of the group `eulerlora.methods`, which has the
name of the method and refers to its subclass of `Method`. Entry points are loaded when the schema
of a config or a recipe is first used.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema

from eulerlora.methods.ensembles import BatchEnsembleMethod, LastLayerEnsembleMethod
from eulerlora.methods.eulerlora import (
    DropKeyMethod,
    EulerLoRAMethod,
    EulerLoRASettings,
    RankDropoutMethod,
)
from eulerlora.methods.heads import EpiNetMethod, SNGPMethod
from eulerlora.methods.posteriors import LaplaceMethod, SWAGMethod, TFBMethod
from eulerlora.methods.variational import BLoBMethod, GaussianCoefficientsMethod, IVONMethod
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import AnyMethod, FitSettings, MethodSettings, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import Settings

ENTRY_POINTS = "eulerlora.methods"

BUILT_IN: tuple[type[AnyMethod], ...] = (
    EulerLoRAMethod,
    RankDropoutMethod,
    GaussianCoefficientsMethod,
    BLoBMethod,
    IVONMethod,
    DropKeyMethod,
    BatchEnsembleMethod,
    LastLayerEnsembleMethod,
    SNGPMethod,
    EpiNetMethod,
    TFBMethod,
    LaplaceMethod,
    SWAGMethod,
)
DEFAULT_METHOD = EulerLoRASettings()
"""The method of recipes and configs that name none."""


@cache
def methods() -> dict[str, type[AnyMethod]]:
    """Returns the classes of all methods by name, the built-in ones first.

    Raises SettingsError, with the distribution, for an entry point that cannot be imported, that is
    no method of its name, or whose name another method has.
    """
    by_name = {method.method_name(): method for method in BUILT_IN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        if point.name in by_name:
            raise SettingsError(f"{_origin(point)}: expected a new name, which no method has yet")
        by_name[point.name] = _loaded(point)
    return by_name


def method_type(settings: MethodSettings) -> type[AnyMethod]:
    """Returns the class of the method that settings belong to."""
    return methods()[settings.name]


def trained_methods() -> dict[str, type[AnyMethod]]:
    """Returns the methods that a recipe can train."""
    return {n: kind for n, kind in methods().items() if kind.fit_settings is None}


def plain_methods() -> list[str]:
    """Returns the names of the methods to whose adapters a distribution can be fitted."""
    return [name for name, method in methods().items() if method.plain_adapters]


def build_network(
    backbone: VisionTransformer,
    adapters: AdapterSettings,
    classes: int,
    preprocessing: Preprocessing | None = None,
    method: MethodSettings = DEFAULT_METHOD,
) -> AdaptedVisionTransformer:
    """Returns a frozen backbone with the tensors of a method, zero.

    preprocessing: of the images; None does not change their colours.
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


def _union(kinds: Sequence[type[Settings]], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Returns the schema of settings that differ in their name."""
    kind: Any = kinds[0]
    if len(kinds) > 1:
        kind = Annotated[Union[tuple(kinds)], Field(discriminator="name")]  # noqa: UP007
    return handler.generate_schema(kind)


def settings_of_trained() -> list[type[Settings]]:
    """Returns the settings that the table `method` of a recipe may have."""
    return [method.settings_type for method in trained_methods().values()]


def settings_of_fits() -> dict[str, type[FitSettings]]:
    """Returns the settings that the table `posterior` of a recipe may have, by method."""
    fits = {name: kind.fit_settings for name, kind in methods().items()}
    return {name: settings for name, settings in fits.items() if settings is not None}


StoredMethod = Annotated[
    MethodSettings,
    GetPydanticSchema(
        lambda _, handler: _union([m.settings_type for m in methods().values()], handler)
    ),
]
"""Any method of a checkpoint."""
TrainedMethod = Annotated[
    MethodSettings, GetPydanticSchema(lambda _, handler: _union(settings_of_trained(), handler))
]
"""A method that a recipe can train; the others are fitted to a finished checkpoint."""
Fit = Annotated[
    FitSettings,
    GetPydanticSchema(lambda _, handler: _union(list(settings_of_fits().values()), handler)),
]
"""A distribution that is fitted to finished adapters."""
