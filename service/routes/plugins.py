"""Optional protocols: routes and formats that installed distributions add to the service.

A distribution names a `Plugin` by an entry point of the group `eulerlora.routes`, as this one does
for the Open Inference Protocol and FHIR. It has the keys, limits, queue, metrics and audit log of
the other routes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fastapi import APIRouter

from eulerlora_contract.answers import TriageResult
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.policy.policy import Policy
from service.http.responses import ProblemBody
from service.inference.engine import ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.prediction import Pipeline
from service.settings import ServiceSettings

_ENTRY_POINTS = "eulerlora.routes"


@dataclass(frozen=True)
class ServiceParts:
    """What routes are built on. `pipeline.predict` is the way of a request to its answer."""

    pipeline: Pipeline
    models: ServedModels
    policy: Policy
    lifecycle: Lifecycle
    settings: ServiceSettings


@dataclass(frozen=True)
class TriageFormat:
    """A format of the answer of `POST /triage`, beside JSON, for requests that accept it.

    Attributes:
        render: From the result and the model card, in Markdown, to a JSON object.
        schema_name: Name of its schema in the OpenAPI document.
        schema: JSON schema of this object.
        parameters: The accepted values of parameters of the media type, by name in lower case;
            absent ones are accepted too.
    """

    render: Callable[[TriageResult, str], Mapping[str, Any]]
    schema_name: str
    schema: Mapping[str, Any]
    parameters: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plugin:
    """What a protocol adds to the service.

    Attributes:
        uploads: Templates of the paths whose requests hold an image; they are refused before their
            body if the client has no capacity left.
        prefix: Of the paths whose problems have `problem_body`.
        problem_body: Replaces a problem document; the status stays.
        triage_formats: By media type.
    """

    routes: Callable[[ServiceParts], APIRouter] | None = None
    uploads: tuple[str, ...] = ()
    prefix: str = ""
    problem_body: ProblemBody | None = None
    triage_formats: Mapping[str, TriageFormat] = field(default_factory=dict)


def load_plugins() -> dict[str, Plugin]:
    """The plug-ins of the installed distributions by name, sorted.

    Raises:
        SettingsError: With the distribution, for an entry point that cannot be imported or is no
            plug-in.
    """
    points = sorted(entry_points(group=_ENTRY_POINTS), key=lambda point: point.name)
    return {point.name: _loaded(point) for point in points}


def plugin_paths(name: str, router: APIRouter, served: Collection[str]) -> list[str]:
    """The templates of the paths of a plug-in.

    Raises:
        SettingsError: With its name, for a path that the service has already (`served`).
    """
    paths = [path for route in router.routes if (path := getattr(route, "path", None))]
    for path in paths:
        if path in served:
            raise SettingsError(f"plug-in {name!r}: expected a new path, got {path}")
    return paths


def _loaded(point: EntryPoint) -> Plugin:
    distribution = "an unknown distribution" if point.dist is None else point.dist.name
    origin = f"plug-in {point.name!r} of {distribution}"
    try:
        plugin = point.load()
    except Exception as error:  # whatever the module of another distribution raises
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"{origin}: expected a plug-in that can be imported, got {reason}"
        ) from error
    if not isinstance(plugin, Plugin):
        raise SettingsError(f"{origin}: expected a {Plugin.__name__}, got {point.value}")
    return plugin
