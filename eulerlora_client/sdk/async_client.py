"""The asyncio client of the service."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Self

import httpx

from eulerlora_client.contract.models import ModelDetails, ModelSummary
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Problem
from eulerlora_client.contract.sampling import Auto
from eulerlora_client.sdk.concurrency import DEFAULT_CONCURRENCY, map_ordered_async
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
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts, retrying_async


class AsyncTriageClient:
    """`TriageClient` with coroutines; use it in an `async with` block, or await `close`."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._http = httpx.AsyncClient(**connection_options(url, key, timeouts))
        self._retry = retry

    async def predict(
        self,
        image: ImageFile,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Prediction:
        """Returns the prediction for one image, as `TriageClient.predict`."""
        return await self._predict(
            image, PredictOptions(mode, samples, seed, model, detail, coverage)
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
    ) -> AsyncGenerator[Prediction | Problem, None]:
        """Yields the prediction or the problem of each image, as `TriageClient.predict_many`."""
        options = PredictOptions(mode, samples, seed, model, detail, coverage)

        async def predict(image: ImageFile) -> Prediction | Problem:
            try:
                return await self._predict(image, options)
            except Problem as problem:
                return problem

        return map_ordered_async(predict, images, concurrency)

    async def models(self) -> tuple[ModelSummary, ...]:
        """Returns the served models, the default first."""
        return (await self._send(models_request())).models

    async def model(self, name: str) -> ModelDetails:
        """Returns the details of a served model."""
        return await self._send(model_request(name))

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _predict(self, image: ImageFile, options: PredictOptions) -> Prediction:
        content = await asyncio.to_thread(image_bytes, image)
        return await self._send(predict_request(content, options))

    async def _send(self, request: HttpRequest[AnyBody]) -> AnyBody:
        body: AnyBody = await retrying_async(self._retry)(self._attempt, request)
        return body

    async def _attempt(self, request: HttpRequest[AnyBody]) -> AnyBody:
        with transport_problems(self._http.base_url):
            response = await self._http.request(request.method, request.path, **request.options)
        return response_body(response, request)
