"""Extensions: what installed distributions do with the answers of the service.

A distribution names a subclass of `Extension` by an entry point of the group
`eulerlora.extensions`, and the options that it adds to `eulerlora serve` by one of the same name in
the group `eulerlora.serve_options`. ARCHITECTURE.md has an example.

Extensions run in the order of their names. Each sees every answered image before its response is
sent, and may refuse it: a raised `Problem` is then the response. Their routes have the keys,
limits, queue and metrics of all others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, Self

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.datastructures import State

from eulerlora.answer import Predictions
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.answers import (
    ImageQuality,
    Prediction,
    PredictionWarning,
    ProblemDocument,
)
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import Options
from service.http.requests import Upload
from service.http.responses import ProblemBody
from service.inference.engine import InferenceItem, ServedModel, ServedModels
from service.settings import ServiceSettings
from service.telemetry.records import ShadowResult

_ENTRY_POINTS = "eulerlora.extensions"


class Interpretation:
    """What a route makes of the predictions of one request; this class answers with them.

    Attributes:
        is_prediction: False for a route that answers with features; nothing is predicted then.
        needs_quality: The decoder measures the quality of the images.
    """

    is_prediction = True
    needs_quality = False

    def check_model(self, served: ServedModel) -> None:
        """Checks that the route can use a model; the body is not read yet.

        Raises:
            Problem: If it cannot.
        """

    def check_images(self, count: int) -> None:
        """Checks the number of images in the body.

        Raises:
            Problem: If the route cannot use this number.
        """

    def stopping_rule(
        self, rule: StoppingRule, served: ServedModel, quality: ImageQuality | None
    ) -> StoppingRule:
        """When the rounds of `samples=auto` end; `rule` is that of the model."""
        return rule

    def body(self, answered: "AnsweredImage") -> BaseModel:
        """The response body of an image."""
        assert answered.prediction is not None
        return answered.prediction

    def differences(self, body: BaseModel, other: BaseModel) -> dict[str, ShadowResult]:
        """How the body that another model leads to differs, by field, beyond the prediction."""
        return {}


@dataclass(frozen=True)
class PredictRequest:
    """A validated request, from the moment when its body is complete.

    Attributes:
        state: Of the HTTP request: its id, the name of its API key, and its observation.
        client: Who shares decoders and inference with others.
        served: The model revision for this request, even if it is replaced in the meantime.
        accepted_at: The time when its body was complete, on the monotonic clock.
        deadline: On the monotonic clock; its inference does not start later.
        warnings: For the response.
    """

    state: State
    client: str
    query: PredictQuery
    interpretation: Interpretation
    served: ServedModel
    options: Options
    accepted_at: float
    deadline: float
    warnings: tuple[PredictionWarning, ...] = ()


@dataclass(frozen=True)
class AnsweredImage:
    """An image with its answer.

    Attributes:
        index: In a batch.
        file: As uploaded; empty unless an extension reads files.
        item: The network's input, and the draw that answers it.
        warnings: Of the decoder.
        quality: None if the interpretation does not need it.
        predictions: Of this image alone; None for features.
        prediction: Its response body; None likewise.
    """

    request: PredictRequest
    index: int | None
    file: bytes
    item: InferenceItem
    warnings: tuple[PredictionWarning, ...]
    quality: ImageQuality | None
    trajectories: Trajectories
    predictions: Predictions | None
    prediction: Prediction | None


class Predictor(Protocol):
    """The way of a request to its answers (`service.prediction.Pipeline`)."""

    async def predict(
        self,
        request: Request,
        query: PredictQuery,
        interpretation: Interpretation = ...,
        upload: Upload | None = None,
    ) -> BaseModel:
        """The response body for the one image of a request."""

    async def predict_batch(
        self, request: Request, query: PredictQuery, interpretation: Interpretation = ...
    ) -> list[BaseModel | ProblemDocument]:
        """A response body or a problem for every image of a request, in order."""


@dataclass(frozen=True)
class Service:
    """What routes are built on.

    Attributes:
        registry: Of the metrics.
        check_ready: Raises NotReady while requests with images are refused.
    """

    pipeline: Predictor
    models: ServedModels
    settings: ServiceSettings
    registry: CollectorRegistry
    check_ready: Callable[[], None]


class Extension:
    """Base of extensions; everything is optional.

    Attributes:
        uploads: Templates of the paths of its routes whose requests hold images: refused before
            their body if the client has no capacity left.
        prefix: Of the paths whose problems have `problem_body`.
        problem_body: Replaces a problem document; the status stays.
        schemas: Added to the OpenAPI document, by name.
        reads_files: `AnsweredImage.file` has the uploaded file.
    """

    uploads: Sequence[str] = ()
    prefix: str = ""
    problem_body: ProblemBody | None = None
    schemas: Mapping[str, Mapping[str, Any]] = {}
    reads_files: bool = False

    @classmethod
    def of_options(cls, *_: Any, **options: Any) -> Self:
        """The extension with its options of `eulerlora serve`, before models are loaded.

        Raises:
            SettingsError: For options that it cannot use.
        """
        return cls(**options)

    def running(self) -> AbstractContextManager[object]:
        """Entered before the models are loaded, left after the last response."""
        return nullcontext()

    def fault(self) -> str | None:
        """Why the service cannot answer requests with images, or None."""
        return None

    def routes(self, service: Service) -> APIRouter | None:
        """Its routes; called once, before the first request."""
        return None

    def body_limits(self, settings: ServiceSettings) -> Mapping[str, int]:
        """Bytes of a request body by path, if not the limit of one upload."""
        return {}

    def warnings(self, served: ServedModel) -> tuple[PredictionWarning, ...]:
        """For the answers of a request that is admitted now."""
        return ()

    async def answered(self, image: AnsweredImage, body: BaseModel) -> None:
        """Sees an image and its response body before the response is sent.

        Raises:
            Problem: Sent instead of the body.
        """

    def model_details(self, served: ServedModel) -> Mapping[str, Any]:
        """Fields of `ModelDetails` for `/models/{name}`."""
        return {}


def load_extensions(
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Extension]:
    """The extensions of the installed distributions by name, sorted.

    `options` has the keyword arguments of each.

    Raises:
        SettingsError: With the distribution, for an entry point that cannot be imported or is no
            extension; as the extension, for its options.
    """
    extensions = {}
    for point in sorted(entry_points(group=_ENTRY_POINTS), key=lambda point: point.name):
        kind = _imported(point)
        if not (isinstance(kind, type) and issubclass(kind, Extension)):
            raise SettingsError(
                f"{_origin(point)}: expected a subclass of Extension, got {point.value}"
            )
        extensions[point.name] = kind.of_options(**(options or {}).get(point.name, {}))
    return extensions


def route_paths(name: str, router: APIRouter, served: Collection[str]) -> list[str]:
    """The templates of the paths of an extension.

    Raises:
        SettingsError: With its name, for a path that the service has already (`served`).
    """
    paths = [path for route in router.routes if (path := getattr(route, "path", None))]
    for path in paths:
        if path in served:
            raise SettingsError(f"extension {name!r}: expected a new path, got {path}")
    return paths


def _origin(point: EntryPoint) -> str:
    distribution = "an unknown distribution" if point.dist is None else point.dist.name
    return f"extension {point.name!r} of {distribution}"


def _imported(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever the module of another distribution raises
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"{_origin(point)}: expected a module that can be imported, got {reason}"
        ) from error
