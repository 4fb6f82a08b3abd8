"""The service's client for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Self

import httpx

from eulerlora.settings import Auto
from eulerlora_client.contract.models import ModelDetails, ModelList, ModelSummary
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Problem
from eulerlora_client.sdk.client import CONCURRENCY
from eulerlora_client.sdk.concurrency import in_order_async
from eulerlora_client.sdk.images import ImageFile, content_of
from eulerlora_client.sdk.requests import (
    Call,
    Question,
    connection,
    model_call,
    models_call,
    prediction_call,
)
from eulerlora_client.sdk.responses import AnyAnswer, result_in, transport_problems
from eulerlora_client.sdk.retry import Patience, Timeouts, repeating_async


class AsyncTriageClient:
    """As `TriageClient`, with coroutines; to be used in an `async with` block, or closed."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        patience: Patience = Patience(),  # noqa: B008
    ) -> None:
        self._http = httpx.AsyncClient(**connection(url, key, timeouts))
        self._patience = patience

    async def predict(
        self,
        image: ImageFile,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
    ) -> Prediction:
        """The answer for one image, as `TriageClient.predict`."""
        content = await asyncio.to_thread(content_of, image)
        question = Question(mode, samples, seed, model, detail)
        return await self._answer(prediction_call(content, question), Prediction)

    def predict_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = CONCURRENCY,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
    ) -> AsyncGenerator[Prediction | Problem, None]:
        """The answers for many images in order, as `TriageClient.predict_many`."""

        async def outcome(image: ImageFile) -> Prediction | Problem:
            try:
                return await self.predict(image, mode, samples, seed, model, detail)
            except Problem as problem:
                return problem

        return in_order_async(outcome, images, concurrency)

    async def models(self) -> tuple[ModelSummary, ...]:
        """The served models, the default first."""
        return (await self._answer(models_call(), ModelList)).models

    async def model(self, name: str) -> ModelDetails:
        """What is known of a served model."""
        return await self._answer(model_call(name), ModelDetails)

    async def close(self) -> None:
        """Ends the connections."""
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

    async def _answer(self, call: Call, kind: type[AnyAnswer]) -> AnyAnswer:
        answer: AnyAnswer = await repeating_async(self._patience)(self._attempt, call, kind)
        return answer

    async def _attempt(self, call: Call, kind: type[AnyAnswer]) -> AnyAnswer:
        with transport_problems(self._http.base_url):
            response = await self._http.request(call.method, call.path, **call.options)
        return result_in(response, kind)
