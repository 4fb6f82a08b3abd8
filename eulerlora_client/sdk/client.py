"""The clients of the service: `TriageClient` blocks, `AsyncTriageClient` has coroutines."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from types import TracebackType
from typing import Self, TypeVar

import httpx

from eulerlora_client.contract.answers import (
    ModelDetails,
    ModelSummary,
    PolicyDescription,
    Prediction,
    TriageResult,
)
from eulerlora_client.contract.problems import Problem
from eulerlora_client.contract.sampling import Auto, Mode
from eulerlora_client.sdk.images import ImageFile, image_bytes
from eulerlora_client.sdk.requests import (
    AnyBody,
    HttpRequest,
    RequestOptions,
    RetryPolicy,
    Timeouts,
    batch_results,
    connection_options,
    model_request,
    models_request,
    policy_request,
    predict_request,
    response_body,
    retrying,
    retrying_async,
    transport_problems,
    triage_batch_request,
    triage_request,
)

DEFAULT_CONCURRENCY = 8


class TriageClient:
    """Blocking client of a running service; threads may share it.

    Use it in a `with` block, or call `close`. url: such as "http://127.0.0.1:8000". key: an API
    key, if the service requires one. strip_metadata: removes the metadata of images before they
    are sent, as `eulerlora_client.sdk.images.without_metadata`. A request without a result raises a
    `Problem`. Raises SettingsError for an invalid URL or key.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        strip_metadata: bool = False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._http = httpx.Client(**connection_options(url, key, timeouts))
        self._retry = retry
        self._strip_metadata = strip_metadata

    def predict(
        self,
        image: ImageFile,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Prediction:
        """Returns the prediction for an image: a path, the bytes of a file, or an open file.

        samples: per adapter, with mode "stoch"; "auto" draws only where a decision is open.
        detail: adds the probabilities of every trajectory. coverage: adds the prediction set with
        this probability, such as 0.9; None, with a warning, if the model is not calibrated for it.
        """
        options = RequestOptions(mode, samples, seed, model, coverage)
        return self._send(predict_request(self._content(image), options, detail), Event())

    def predict_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = DEFAULT_CONCURRENCY,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Generator[Prediction | Problem, None, None]:
        """Yields the prediction or the problem of each image, in order.

        concurrency: number of concurrent requests. Images are consumed lazily.
        """
        options = RequestOptions(mode, samples, seed, model, coverage)
        request_of = partial(predict_request, options=options, detail=detail)
        return self._many(request_of, images, concurrency)

    def triage(
        self,
        image: ImageFile,
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> TriageResult:
        """Returns the disposition of an image under the service's policy, with its prediction.

        mode, samples: by default those that the policy's urgent threshold was set for; with other
        values, `policy.notice` of the result says so. Other options as for `predict`.
        """
        options = RequestOptions(mode, samples, seed, model, coverage)
        return self._send(triage_request(self._content(image), options), Event())

    def triage_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = DEFAULT_CONCURRENCY,
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> Generator[TriageResult | Problem, None, None]:
        """Yields the disposition or the problem of each image, in order, as `predict_many`.

        Sends one request per image, so that each is retried alone and results arrive early.
        """
        options = RequestOptions(mode, samples, seed, model, coverage)
        return self._many(partial(triage_request, options=options), images, concurrency)

    def triage_batch(
        self,
        images: Iterable[ImageFile],
        mode: Mode | None = None,
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        coverage: float | None = None,
    ) -> tuple[TriageResult | Problem, ...]:
        """Returns the disposition or the problem of each image, from one request for all.

        The service accepts 32 images by default. Raises a Problem if the request fails.
        """
        options = RequestOptions(mode, samples, seed, model, coverage)
        contents = [self._content(image) for image in images]
        return batch_results(self._send(triage_batch_request(contents, options), Event()))

    def policy(self) -> PolicyDescription:
        """Returns the triage policy of the service."""
        return self._send(policy_request(), Event())

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

    def _many(
        self,
        request_of: Callable[[bytes], HttpRequest[AnyBody]],
        images: Iterable[ImageFile],
        concurrency: int,
    ) -> Generator[AnyBody | Problem, None, None]:
        cancelled = Event()

        def call(image: ImageFile) -> AnyBody | Problem:
            try:
                return self._send(request_of(self._content(image)), cancelled)
            except Problem as problem:
                return problem

        return map_ordered(call, images, concurrency, cancelled)

    def _content(self, image: ImageFile) -> bytes:
        return image_bytes(image, self._strip_metadata)

    def _send(self, request: HttpRequest[AnyBody], cancelled: Event) -> AnyBody:
        body: AnyBody = retrying(self._retry, cancelled)(self._attempt, request)
        return body

    def _attempt(self, request: HttpRequest[AnyBody]) -> AnyBody:
        with transport_problems(self._http.base_url):
            response = self._http.request(request.method, request.path, **request.options)
        return response_body(response, request)


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
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> Prediction:
        """Returns the prediction for one image, as `TriageClient.predict`."""
        options = RequestOptions(mode, samples, seed, model, coverage)
        return await self._send(predict_request(await self._content(image), options, detail))

    def predict_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = DEFAULT_CONCURRENCY,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
        coverage: float | None = None,
    ) -> AsyncGenerator[Prediction | Problem, None]:
        """Yields the prediction or the problem of each image, as `TriageClient.predict_many`."""
        options = RequestOptions(mode, samples, seed, model, coverage)
        request_of = partial(predict_request, options=options, detail=detail)
        return self._many(request_of, images, concurrency)

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
        options = RequestOptions(mode, samples, seed, model, coverage)
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
        options = RequestOptions(mode, samples, seed, model, coverage)
        return self._many(partial(triage_request, options=options), images, concurrency)

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
        options = RequestOptions(mode, samples, seed, model, coverage)
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


Item = TypeVar("Item")
Result = TypeVar("Result")

PREFETCH_FACTOR = 2
"""Submitted items per concurrent call, so that one slow call does not idle the others."""


def map_ordered(
    function: Callable[[Item], Result], items: Iterable[Item], concurrency: int, cancelled: Event
) -> Generator[Result, None, None]:
    """Yields the result for each item, in order, from `concurrency` threads.

    Items are consumed lazily. When the caller stops, calls that have not started are cancelled,
    `cancelled` is set, and running calls are waited for.
    """
    threads = ThreadPoolExecutor(_checked(concurrency))
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(threads.submit(function, item))
            while pending and (len(pending) >= PREFETCH_FACTOR * concurrency or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        cancelled.set()
        threads.shutdown(cancel_futures=True)


async def map_ordered_async(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item], concurrency: int
) -> AsyncGenerator[Result, None]:
    """Yields the result for each item, in order, from tasks that end when the caller stops."""
    free = asyncio.Semaphore(_checked(concurrency))
    pending: deque[asyncio.Task[Result]] = deque()

    async def call(item: Item) -> Result:
        async with free:
            return await function(item)

    try:
        for item in items:
            pending.append(asyncio.create_task(call(item)))
            while pending and (len(pending) >= PREFETCH_FACTOR * concurrency or pending[0].done()):
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _checked(concurrency: int) -> int:
    if concurrency < 1:
        raise ValueError(f"expected a concurrency of at least 1, got {concurrency}")
    return concurrency
