"""The asyncio client of the service."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from types import TracebackType
from typing import Self

import httpx

from eulerlora_client.contract.models import ModelDetails, ModelSummary
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Problem
from eulerlora_client.contract.sampling import Auto, Mode
from eulerlora_client.contract.triage import PolicyDescription, TriageResult
from eulerlora_client.sdk.concurrency import DEFAULT_CONCURRENCY, map_ordered_async
from eulerlora_client.sdk.images import ImageFile, image_bytes
from eulerlora_client.sdk.requests import (
    AnyBody,
    HttpRequest,
    PredictOptions,
    TriageOptions,
    connection_options,
    model_request,
    models_request,
    policy_request,
    predict_request,
    triage_batch_request,
    triage_request,
)
from eulerlora_client.sdk.responses import batch_results, response_body, transport_problems
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts, retrying_async


class AsyncTriageClient:
    """`TriageClient` with coroutines; use it in an `async with` block, or await `close`."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        strip_metadata: bool = False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._http = httpx.AsyncClient(**connection_options(url, key, timeouts))
        self._retry = retry
        self._strip_metadata = strip_metadata

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
        options = PredictOptions(mode, samples, seed, model, detail, coverage)
        return await self._send(predict_request(await self._content(image), options))

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
        return self._many(lambda content: predict_request(content, options), images, concurrency)

    async def triage(
        self,
        image: ImageFile,
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> TriageResult:
        """Returns the disposition of an image, as `TriageClient.triage`."""
        options = TriageOptions(mode, samples, seed, model, coverage)
        return await self._send(triage_request(await self._content(image), options))

    def triage_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = DEFAULT_CONCURRENCY,
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> AsyncGenerator[TriageResult | Problem, None]:
        """Yields the disposition or the problem of each image, as `TriageClient.triage_many`."""
        options = TriageOptions(mode, samples, seed, model, coverage)
        return self._many(lambda content: triage_request(content, options), images, concurrency)

    async def triage_batch(
        self,
        images: Iterable[ImageFile],
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> tuple[TriageResult | Problem, ...]:
        """Returns the disposition or the problem of each image, as `TriageClient.triage_batch`."""
        options = TriageOptions(mode, samples, seed, model, coverage)
        contents = [await self._content(image) for image in images]
        return batch_results(await self._send(triage_batch_request(contents, options)))

    async def policy(self) -> PolicyDescription:
        """Returns the triage policy of the service."""
        return await self._send(policy_request())

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

    def _many(
        self,
        request_of: Callable[[bytes], HttpRequest[AnyBody]],
        images: Iterable[ImageFile],
        concurrency: int,
    ) -> AsyncGenerator[AnyBody | Problem, None]:
        async def call(image: ImageFile) -> AnyBody | Problem:
            try:
                return await self._send(request_of(await self._content(image)))
            except Problem as problem:
                return problem

        return map_ordered_async(call, images, concurrency)

    async def _content(self, image: ImageFile) -> bytes:
        return await asyncio.to_thread(image_bytes, image, self._strip_metadata)

    async def _send(self, request: HttpRequest[AnyBody]) -> AnyBody:
        body: AnyBody = await retrying_async(self._retry)(self._attempt, request)
        return body

    async def _attempt(self, request: HttpRequest[AnyBody]) -> AnyBody:
        with transport_problems(self._http.base_url):
            response = await self._http.request(request.method, request.path, **request.options)
        return response_body(response, request)
