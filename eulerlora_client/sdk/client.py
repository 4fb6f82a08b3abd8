"""The blocking client of the service."""

from collections.abc import Generator, Iterable
from threading import Event
from types import TracebackType
from typing import Self

import httpx

from eulerlora_client.contract.models import ModelDetails, ModelSummary
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Problem
from eulerlora_client.contract.sampling import Auto
from eulerlora_client.sdk.concurrency import DEFAULT_CONCURRENCY, map_ordered
from eulerlora_client.sdk.images import ImageFile, image_bytes
from eulerlora_client.sdk.requests import (
    AnyBody,
    HttpRequest,
    PredictOptions,
    connection_options,
    model_request,
    models_request,
    predict_request,
)
from eulerlora_client.sdk.responses import response_body, transport_problems
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts, retrying


class TriageClient:
    """Blocking client of a running service; threads may share it.

    Use it in a `with` block, or call `close`. url: such as "http://127.0.0.1:8000". key: an API
    key, if the service requires one. A request without a result raises a `Problem`. Raises
    SettingsError for an invalid URL or key.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._http = httpx.Client(**connection_options(url, key, timeouts))
        self._retry = retry

    def predict(
        self,
        image: ImageFile,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Prediction:
        """Returns the prediction for an image: a path, the bytes of a file, or an open file.

        samples: per adapter, with mode "stoch"; "auto" draws until the result has converged.
        detail: adds the probabilities of every trajectory. coverage: adds the prediction set with
        this probability, such as 0.9; None, with a warning, if the model is not calibrated for it.
        """
        return self._predict(
            image, PredictOptions(mode, samples, seed, model, detail, coverage), Event()
        )

    def predict_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = DEFAULT_CONCURRENCY,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Generator[Prediction | Problem, None, None]:
        """Yields the prediction or the problem of each image, in order.

        concurrency: number of concurrent requests. Images are consumed lazily.
        """
        options, cancelled = PredictOptions(mode, samples, seed, model, detail, coverage), Event()

        def predict(image: ImageFile) -> Prediction | Problem:
            try:
                return self._predict(image, options, cancelled)
            except Problem as problem:
                return problem

        return map_ordered(predict, images, concurrency, cancelled)

    def models(self) -> tuple[ModelSummary, ...]:
        """Returns the served models, the default first."""
        return self._send(models_request(), Event()).models

    def model(self, name: str) -> ModelDetails:
        """Returns the details of a served model."""
        return self._send(model_request(name), Event())

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _predict(self, image: ImageFile, options: PredictOptions, cancelled: Event) -> Prediction:
        return self._send(predict_request(image_bytes(image), options), cancelled)

    def _send(self, request: HttpRequest[AnyBody], cancelled: Event) -> AnyBody:
        body: AnyBody = retrying(self._retry, cancelled)(self._attempt, request)
        return body

    def _attempt(self, request: HttpRequest[AnyBody]) -> AnyBody:
        with transport_problems(self._http.base_url):
            response = self._http.request(request.method, request.path, **request.options)
        return response_body(response, request)
