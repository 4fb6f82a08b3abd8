"""The clients of the service: `AsyncTriageClient` has coroutines, `TriageClient` blocks.

Retrying has no side effects: the seed of a prediction is derived from the image, so that a
repeated request has the same result, and a repeated decision changes nothing.
"""

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import Thread
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from eulerlora_client.images import ImageFile, image_bytes
from eulerlora_client.proxies import environment_proxy
from eulerlora_client.retries import RetryPolicy, retrying
from eulerlora_contract.answers import (
    Disposition,
    ImageEmbedding,
    ModelDetails,
    ModelList,
    ModelSummary,
    PolicyDescription,
    Prediction,
    PredictionBatch,
    ProblemDocument,
    RecordedDecision,
    TriageBatch,
    TriageResult,
    WireModel,
    most_urgent,
)
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.image_folders import select_files
from eulerlora_contract.problems import (
    BodyTooLarge,
    ConnectionLost,
    InvalidUpload,
    Problem,
    TimedOut,
    UnexpectedAnswer,
    Unreachable,
    problem_class,
)
from eulerlora_contract.queries import MAX_BATCH_BYTES, MAX_BATCH_FILES, Decided
from eulerlora_contract.sampling import Auto, Mode, Views
from eulerlora_contract.settings import Positive, Settings, first_error

_AnyBody = TypeVar("_AnyBody", bound=WireModel)
_Part = tuple[str, bytes, str]
"""Name, content and media type of a part of a form."""

logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class PredictOptions(TypedDict, total=False):
    """Options of an answer; None, or an absent option, takes the default of the service.

    Attributes:
        mode: "det" or "stoch"; by default "det", and for a disposition that of the policy's
            thresholds.
        samples: Per adapter, with mode "stoch"; "auto" takes 1, 2 or 4, until the decisions are
            settled.
        views: Of the image that the trajectories share between them, by default those of the model
            in mode "stoch" and 1 in "det".
        seed: Of the draws, by default derived from the image.
        model: Name of a served model.
        coverage: Adds the prediction set with this probability, such as 0.9; None, with a warning,
            if the model is not calibrated for it.
        detail: Adds the probabilities and view of every trajectory, and the parts of the variance.
    """

    mode: Mode | None
    samples: int | Auto | None
    views: Views | None
    seed: int | None
    model: str | None
    coverage: float | None
    detail: bool


class DecisionOptions(TypedDict, total=False):
    """What a person decided about an answer: a decision, a diagnosis, or both.

    Attributes:
        decision: A disposition, which accepts the suggested one or overrides it; "undo" withdraws
            decision, reason and diagnosis.
        reason: Why; required for an override. Without patient data.
        diagnosis: The confirmed one: the name of a class, or a code of one's own.
        index: The position of the image in its batch; only for an answer of a batch.
    """

    decision: Disposition | Decided | None
    reason: str | None
    diagnosis: str | None
    index: int | None


@dataclass(frozen=True)
class TriagedLesion:
    """The suggested next step for a lesion: that of the most urgent of its images.

    An image without a result may show anything: it is more urgent than a routine one.

    Attributes:
        images: The result or the problem of each image, in order.
    """

    images: tuple[TriageResult | Problem, ...]

    @property
    def deciding(self) -> TriageResult | Problem:
        """That of the most urgent image; of equals, with the highest target probability."""
        answers = [None if isinstance(one, Problem) else one for one in self.images]
        return self.images[most_urgent(answers)]

    @property
    def disposition(self) -> Disposition | None:
        """None if an image has no result and no other is more than routine."""
        deciding = self.deciding
        return None if isinstance(deciding, Problem) else deciding.disposition


class Timeouts(Settings):
    """Timeouts of one attempt, in seconds.

    Attributes:
        connect_s: To make a connection.
        read_s: Without progress of the response.
        write_s: Without progress of the request.
    """

    connect_s: Positive = 5
    read_s: Positive = 60
    write_s: Positive = 60


_DEFAULT_CONCURRENCY = 8


class AsyncTriageClient:
    """Client of a running service; use it in an `async with` block, or await `close`.

    An image is a path, the bytes of a file, or an open file. A request without a result raises a
    `Problem`, whose `file` is the path of the image. Methods for many images take a folder too, in
    place of an image or of all of them, and send the files that
    `eulerlora_contract.image_folders.select_files` finds in it, in its order.

    Requests to this machine use no proxy. Others use that of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY,
    unless NO_PROXY names the host; the attribute `proxy` says which, or None.

    Args:
        url: Such as "http://127.0.0.1:8000".
        key: An API key, if the service requires one.
        strip_metadata: Removes the metadata of images before they are sent, as
            `eulerlora_client.images.image_bytes`.

    Raises:
        SettingsError: For an invalid URL, key or proxy.
        TypeError: For an unknown option.
        RuntimeError: After `close`.
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
        self._http = httpx.AsyncClient(**_connection_options(url, key, timeouts))
        self.proxy = environment_proxy(url)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._retry = retry
        self._strip_metadata = strip_metadata

    async def predict(self, image: ImageFile, **options: Unpack[PredictOptions]) -> Prediction:
        return await self._upload(Prediction, "predict", image, _query(options))

    def predict_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        **options: Unpack[PredictOptions],
    ) -> AsyncGenerator[Prediction | Problem, None]:
        """The prediction or the problem of each image, in order; requests run concurrently.

        `images` are consumed lazily; a folder stands for the images in it.
        """
        return map_ordered(_caught(self.predict, options), _each_image(images), concurrency)

    async def triage(self, image: ImageFile, **options: Unpack[PredictOptions]) -> TriageResult:
        """The disposition of an image under the service's policy, with its prediction.

        With other than the default mode and samples, `policy.notice` of the result says so.
        """
        return await self._upload(TriageResult, "triage", image, _query(options))

    def triage_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        **options: Unpack[PredictOptions],
    ) -> AsyncGenerator[TriageResult | Problem, None]:
        """The disposition or the problem of each image, in order, as `predict_many`.

        Sends one request per image, so that each is retried alone and results arrive early.
        """
        return map_ordered(_caught(self.triage, options), _each_image(images), concurrency)

    async def predict_batch(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> tuple[Prediction | Problem, ...]:
        """The prediction or the problem of each image, as `triage_batch`."""
        return await self._batch(PredictionBatch, "predict/batch", images, _query(options))

    async def triage_batch(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> tuple[TriageResult | Problem, ...]:
        """The disposition or the problem of each image, from few requests.

        A request has as many images as the service accepts: 32 and 128 MiB, or fewer if it refuses
        them.

        Raises:
            Problem: If a request fails.
        """
        query = _query(options)
        return await self._batch(TriageBatch, "triage/batch", images, query)

    async def triage_lesion(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> TriagedLesion:
        """The disposition of a lesion from several images of it, which are sent as a batch.

        Raises:
            Problem: If a request fails.
            ValueError: Without images.
        """
        results = await self.triage_batch(images, **options)
        if not results:
            raise ValueError("expected one or more images of the lesion, got none")
        return TriagedLesion(results)

    async def embed(self, image: ImageFile, model: str | None = None) -> ImageEmbedding:
        """The features of an image with the revision of the model, by default the first one."""
        query = {} if model is None else {"model": model}
        return await self._upload(ImageEmbedding, "embed", image, query)

    def embed_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        model: str | None = None,
    ) -> AsyncGenerator[ImageEmbedding | Problem, None]:
        """The features or the problem of each image, in order, as `predict_many`."""
        call = _caught(self.embed, {"model": model})
        return map_ordered(call, _each_image(images), concurrency)

    async def decide(self, request_id: str, **options: Unpack[DecisionOptions]) -> RecordedDecision:
        """Records what a person decided about an answer of `triage`, in the service's audit log.

        Returns all that was recorded about the answer. A later decision replaces an earlier one,
        and the same one again changes nothing.
        """
        _check_options(options, DecisionOptions)
        body = {"request_id": request_id, **options}
        return await self._send(RecordedDecision, "POST", "decisions", json=body)

    async def policy(self) -> PolicyDescription:
        """The triage policy of the service."""
        return await self._send(PolicyDescription, "GET", "triage/policy")

    async def models(self) -> tuple[ModelSummary, ...]:
        """The served models, the default first."""
        return (await self._send(ModelList, "GET", "models")).models

    async def model(self, name: str) -> ModelDetails:
        """The details of a served model."""
        return await self._send(ModelDetails, "GET", f"models/{quote(name, '')}")

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _upload(
        self, body: type[_AnyBody], path: str, image: ImageFile, query: Mapping[str, str]
    ) -> _AnyBody:
        try:
            part = await self._part(image)
            return await self._send(body, "POST", path, params=query, files={"file": part})
        except Problem as problem:
            problem.file = _name_of(image)
            raise

    async def _batch(
        self,
        body: type[TriageBatch] | type[PredictionBatch],
        path: str,
        images: ImageFile | Iterable[ImageFile],
        query: Mapping[str, str],
    ) -> tuple[Any, ...]:
        results: dict[int, Any] = {}
        parts: dict[int, _Part] = {}

        async def send(positions: Sequence[int]) -> None:
            files = [("files", parts[position]) for position in positions]
            try:
                batch = await self._send(body, "POST", path, params=query, files=files)
            except (InvalidUpload, BodyTooLarge) as problem:
                if len(positions) == 1:
                    results[positions[0]] = problem
                    return
                middle = len(positions) // 2  # the limits of this service are lower
                await send(positions[:middle])
                await send(positions[middle:])
            else:
                results.update(zip(positions, _batch_results(batch), strict=True))

        named = []
        for position, image in enumerate(_each_image(images)):
            named.append(image)
            try:
                part = await self._part(image)
            except Problem as problem:
                results[position] = problem
                continue
            sizes = [len(content) for _, content, _ in (*parts.values(), part)]
            if parts and (len(sizes) > MAX_BATCH_FILES or sum(sizes) > MAX_BATCH_BYTES):
                await send(list(parts))
                parts.clear()
            parts[position] = part
        if parts:
            await send(list(parts))
        for position, image in enumerate(named):
            if isinstance(results[position], Problem):
                results[position].file = _name_of(image)
        return tuple(results[position] for position in range(len(named)))

    async def _part(self, image: ImageFile) -> _Part:
        """The name of the file is not sent: it may name a patient."""
        content = await asyncio.to_thread(image_bytes, image, self._strip_metadata)
        return "image", content, "application/octet-stream"

    async def _send(self, body: type[_AnyBody], method: str, path: str, **content: Any) -> _AnyBody:
        loop = asyncio.get_running_loop()
        if self._http.is_closed:
            raise RuntimeError(_CLOSED)
        if self._event_loop not in (None, loop):
            raise RuntimeError("expected one event loop for a client; make one in each asyncio.run")
        self._event_loop = loop

        async def attempt() -> _AnyBody:
            with _transport_problems(self._http.base_url, self.proxy):
                response = await self._http.request(method, path, **content)
            return _parsed_body(response, body)

        return await retrying(self._retry)(attempt)


class TriageClient:
    """`AsyncTriageClient` with blocking methods; threads may share it, processes may not.

    Its requests run in one thread of its own. Use it in a `with` block, or call `close`.
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
        self._client = AsyncTriageClient(
            url, key, strip_metadata=strip_metadata, timeouts=timeouts, retry=retry
        )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="TriageClient", daemon=True)
        self._thread.start()

    def predict(self, image: ImageFile, **options: Unpack[PredictOptions]) -> Prediction:
        return self._result(self._client.predict(image, **options))

    def predict_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        **options: Unpack[PredictOptions],
    ) -> Generator[Prediction | Problem, None, None]:
        """As `AsyncTriageClient.predict_many`."""
        return self._many(_caught(self._client.predict, options), _each_image(images), concurrency)

    def triage(self, image: ImageFile, **options: Unpack[PredictOptions]) -> TriageResult:
        """The disposition of an image under the service's policy, with its prediction."""
        return self._result(self._client.triage(image, **options))

    def triage_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        **options: Unpack[PredictOptions],
    ) -> Generator[TriageResult | Problem, None, None]:
        """The disposition or the problem of each image, in order, as `predict_many`."""
        return self._many(_caught(self._client.triage, options), _each_image(images), concurrency)

    def predict_batch(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> tuple[Prediction | Problem, ...]:
        """The prediction or the problem of each image, from few requests."""
        return self._result(self._client.predict_batch(images, **options))

    def triage_batch(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> tuple[TriageResult | Problem, ...]:
        """The disposition or the problem of each image, from few requests."""
        return self._result(self._client.triage_batch(images, **options))

    def triage_lesion(
        self, images: ImageFile | Iterable[ImageFile], **options: Unpack[PredictOptions]
    ) -> TriagedLesion:
        """The disposition of a lesion from several images of it, which are sent as a batch."""
        return self._result(self._client.triage_lesion(images, **options))

    def embed(self, image: ImageFile, model: str | None = None) -> ImageEmbedding:
        """The features of an image with the revision of the model, by default the first one."""
        return self._result(self._client.embed(image, model))

    def embed_many(
        self,
        images: ImageFile | Iterable[ImageFile],
        concurrency: int = _DEFAULT_CONCURRENCY,
        model: str | None = None,
    ) -> Generator[ImageEmbedding | Problem, None, None]:
        """The features or the problem of each image, in order, as `predict_many`."""
        call = _caught(self._client.embed, {"model": model})
        return self._many(call, _each_image(images), concurrency)

    def decide(self, request_id: str, **options: Unpack[DecisionOptions]) -> RecordedDecision:
        """Records what a person decided about an answer of `triage`, in the service's audit log."""
        return self._result(self._client.decide(request_id, **options))

    def policy(self) -> PolicyDescription:
        """The triage policy of the service."""
        return self._result(self._client.policy())

    def models(self) -> tuple[ModelSummary, ...]:
        """The served models, the default first."""
        return self._result(self._client.models())

    def model(self, name: str) -> ModelDetails:
        """The details of a served model."""
        return self._result(self._client.model(name))

    def close(self) -> None:
        """Cancels running requests, closes the connections and ends the thread."""
        if not self._thread.is_alive():
            return
        self._result(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        future = self._start(work)
        try:
            return future.result()
        finally:
            future.cancel()  # after an interrupt; a finished one does not change

    def _start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError(_CLOSED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()
        await self._loop.shutdown_default_executor()

    def _many(
        self,
        call: Callable[[ImageFile], Coroutine[Any, Any, _Result]],
        images: Iterable[ImageFile],
        concurrency: int,
    ) -> Generator[_Result, None, None]:
        """The caller's thread consumes the images."""
        limited = _limited(call, concurrency)
        pending: deque[Future[_Result]] = deque()

        def start(image: ImageFile) -> Future[_Result]:
            return self._start(limited(image))

        try:
            for future in _in_order(start, images, pending, concurrency):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


def _query(options: PredictOptions) -> dict[str, str]:
    _check_options(options, PredictOptions)
    query = {name: str(value) for name, value in options.items() if value is not None}
    if query.pop("detail", None) == str(True):
        query["detail"] = "trajectories"
    return query


def _check_options(options: Mapping[str, object], kind: type) -> None:
    """Raises TypeError for an unknown option."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name}; expected {', '.join(known)}")


def _caught(
    method: Callable[..., Coroutine[Any, Any, _Result]], options: Mapping[str, object]
) -> Callable[[ImageFile], Coroutine[Any, Any, _Result | Problem]]:

    async def call(image: ImageFile) -> _Result | Problem:
        try:
            return await method(image, **options)
        except Problem as problem:
            return problem

    return call


_PREFETCH_FACTOR = 2
"""Submitted items per concurrent call, so that one slow call does not idle the others."""

_AnyFuture = TypeVar("_AnyFuture", "asyncio.Task[Any]", "Future[Any]")


async def map_ordered(
    function: Callable[[_Item], Coroutine[Any, Any, _Result]],
    items: Iterable[_Item],
    concurrency: int,
) -> AsyncGenerator[_Result, None]:
    """Yields the result for each item, in order, from tasks that end when the caller stops."""
    limited = _limited(function, concurrency)
    pending: deque[asyncio.Task[_Result]] = deque()

    def start(item: _Item) -> asyncio.Task[_Result]:
        return asyncio.create_task(limited(item))

    try:
        for task in _in_order(start, items, pending, concurrency):
            yield await task
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _limited(
    function: Callable[[_Item], Coroutine[Any, Any, _Result]], concurrency: int
) -> Callable[[_Item], Coroutine[Any, Any, _Result]]:
    if concurrency < 1:
        raise ValueError(f"expected a concurrency of at least 1, got {concurrency}")
    free = asyncio.Semaphore(concurrency)

    async def call(item: _Item) -> _Result:
        async with free:
            return await function(item)

    return call


def _in_order(
    start: Callable[[_Item], _AnyFuture],
    items: Iterable[_Item],
    pending: deque[_AnyFuture],
    concurrency: int,
) -> Iterator[_AnyFuture]:
    """Starts items lazily and yields their futures in order; `pending` holds those not yet used."""
    for item in items:
        pending.append(start(item))
        while pending and (len(pending) >= _PREFETCH_FACTOR * concurrency or pending[0].done()):
            yield pending[0]
            pending.popleft()
    while pending:
        yield pending[0]
        pending.popleft()


def _each_image(images: ImageFile | Iterable[ImageFile]) -> Iterator[ImageFile]:
    """Every image; in place of a folder, the files that `select_files` finds in it."""
    is_one = isinstance(images, str | bytes | os.PathLike) or hasattr(images, "read")
    for image in [images] if is_one else images:  # type: ignore[union-attr]
        if isinstance(image, str | os.PathLike) and os.path.isdir(image):  # noqa: PTH112 - also NUL
            selection = select_files([image])
            for note in selection.notes:
                logger.warning("%s: %s", image, note)
            yield from selection.files
        else:
            yield image  # type: ignore[misc]


def _name_of(image: ImageFile) -> str | None:
    named = image if isinstance(image, str | os.PathLike) else getattr(image, "name", None)
    return str(named) if isinstance(named, str | os.PathLike) else None


_EXAMPLE = "a URL such as http://127.0.0.1:8000"
_CLOSED = "the client is closed, or was made before this process was forked"


def _connection_options(url: str, key: str | None, timeouts: Timeouts) -> dict[str, Any]:
    """Options of httpx's clients.

    Raises SettingsError for an invalid URL or key, or a proxy that cannot be used.
    """
    base_url, proxy = _checked_url(url), environment_proxy(url)
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise SettingsError("key: expected printable ASCII characters without spaces")
    try:
        # A transport makes httpx ignore the proxies of the environment, not its certificates.
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(proxy=proxy, limits=limits)
    except ImportError as error:
        raise SettingsError("a SOCKS proxy requires: pip install 'httpx[socks]'") from error
    return {
        "base_url": base_url,
        "headers": {} if key is None else {"Authorization": f"Bearer {key}"},
        "timeout": httpx.Timeout(
            connect=timeouts.connect_s, read=timeouts.read_s, write=timeouts.write_s, pool=None
        ),
        "transport": transport,
    }


def _checked_url(url: str) -> str:
    if "@" in url:  # which is not printed: it may have a password
        raise SettingsError("url: expected a URL without user and password; a key is given apart")
    try:
        parts = urlsplit(url)
        valid_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise SettingsError(f"url: expected {_EXAMPLE}, got {url!r}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not valid_port:
        raise SettingsError(f"url: expected {_EXAMPLE}, got {url!r}")
    if parts.query or parts.fragment:
        raise SettingsError(f"url: expected a URL without query and fragment, got {url!r}")
    return url


def _parsed_body(response: httpx.Response, body: type[_AnyBody]) -> _AnyBody:
    """The body of a response. Raises the reported Problem, or UnexpectedAnswer."""
    if response.status_code != httpx.codes.OK:
        raise _reported_problem(response)
    try:
        # unknown keys of later services are ignored, also in models that checkpoints share
        return body.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        raise UnexpectedAnswer(
            f"expected a {body.__name__} ({first_error(error, body)})",
            status=response.status_code,
            request_id=response.headers.get("X-Request-ID"),
        ) from error


def _reported_problem(response: httpx.Response) -> Problem:
    """The problem that a response reports; a response without a document has one too."""
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        document = None
    problem = _problem_of(document if isinstance(document, dict) else {}, response.status_code)
    problem.request_id = problem.request_id or response.headers.get("X-Request-ID")
    problem.retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
    return problem


def _batch_results(
    batch: TriageBatch | PredictionBatch,
) -> tuple[TriageResult | Prediction | Problem, ...]:
    """The results of a batch, with an exception in place of each problem document."""
    return tuple(
        _problem_of(result.model_dump(), result.status)
        if isinstance(result, ProblemDocument)
        else result
        for result in batch.results
    )


def _problem_of(document: Mapping[str, Any], status: int) -> Problem:
    """`document` may lack any of its keys."""
    texts = {name: document.get(name) for name in ("code", "title", "detail", "request_id")}
    code, title, detail, request_id = (
        text if isinstance(text, str) and text else None for text in texts.values()
    )
    return problem_class(code, status)(
        detail or f"status {status} without a problem document",
        code=code,
        status=status,
        title=title,
        request_id=request_id,
    )


@contextmanager
def _transport_problems(url: httpx.URL, proxy: httpx.Proxy | None) -> Iterator[None]:
    through = "" if proxy is None else f" through the proxy {proxy.url} of the environment"
    try:
        yield
    except httpx.RequestError as error:
        reason = f"({str(error) or type(error).__name__})"
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            raise Unreachable(f"no connection to {url}{through} {reason}") from error
        if isinstance(error, httpx.TimeoutException):
            raise TimedOut(f"{url} {reason}") from error
        if isinstance(error, httpx.TransportError):
            raise ConnectionLost(f"{url} {reason}") from error
        raise UnexpectedAnswer(f"{url} {reason}") from error


def _retry_after_s(value: str | None) -> float | None:
    """The header holds seconds or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
