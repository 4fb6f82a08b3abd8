"""The service's client for ordinary, blocking code."""

from collections.abc import Generator, Iterable
from threading import Event
from types import TracebackType
from typing import Self

import httpx

from eulerlora.settings import Auto
from eulerlora_client.contract.models import ModelDetails, ModelList, ModelSummary
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import Problem
from eulerlora_client.sdk.concurrency import in_order
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
from eulerlora_client.sdk.retry import Patience, Timeouts, repeating

CONCURRENCY = 8


class TriageClient:
    """Asks a running service; may be shared by threads. To be closed, or used in a `with` block.

    url: such as "http://127.0.0.1:8000". key: one of the service's keys, where it wants one.
    Every reason for which there is no answer is a `Problem`. Raises SettingsError for an
    address or a key that cannot be one.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        patience: Patience = Patience(),  # noqa: B008
    ) -> None:
        self._http = httpx.Client(**connection(url, key, timeouts))
        self._patience = patience

    def predict(
        self,
        image: ImageFile,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
    ) -> Prediction:
        """The answer for one image: the path of its file, its bytes, or an open binary file.

        samples: for each adapter, in mode "stoch"; "auto" for as many as it takes. detail: with
        every trajectory's probabilities.
        """
        question = Question(mode, samples, seed, model, detail)
        return self._prediction(image, question, Event())

    def predict_many(
        self,
        images: Iterable[ImageFile],
        concurrency: int = CONCURRENCY,
        mode: str = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        model: str | None = None,
        detail: bool = False,
    ) -> Generator[Prediction | Problem, None, None]:
        """The answers for many images, in order; where one has none, the problem in its place.

        concurrency: images that are asked about at the same time. Images are taken from the
        iterable as they are needed.
        """
        question, given_up = Question(mode, samples, seed, model, detail), Event()

        def outcome(image: ImageFile) -> Prediction | Problem:
            try:
                return self._prediction(image, question, given_up)
            except Problem as problem:
                return problem

        return in_order(outcome, images, concurrency, given_up)

    def models(self) -> tuple[ModelSummary, ...]:
        """The served models, the default first."""
        return self._answer(models_call(), ModelList, Event()).models

    def model(self, name: str) -> ModelDetails:
        """What is known of a served model."""
        return self._answer(model_call(name), ModelDetails, Event())

    def close(self) -> None:
        """Ends the connections."""
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

    def _prediction(self, image: ImageFile, question: Question, given_up: Event) -> Prediction:
        return self._answer(prediction_call(content_of(image), question), Prediction, given_up)

    def _answer(self, call: Call, kind: type[AnyAnswer], given_up: Event) -> AnyAnswer:
        answer: AnyAnswer = repeating(self._patience, given_up)(self._attempt, call, kind)
        return answer

    def _attempt(self, call: Call, kind: type[AnyAnswer]) -> AnyAnswer:
        with transport_problems(self._http.base_url):
            response = self._http.request(call.method, call.path, **call.options)
        return result_in(response, kind)
