"""The life of the service: start, health checks, reloads and the end."""

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

import torch
from starlette.types import Scope
from torch import Tensor

from eulerlora.inference import InferenceModel
from eulerlora_contract.errors import CheckpointError, EulerLoRAError, SettingsError
from eulerlora_contract.problems import NotReady
from eulerlora_contract.processes import trim_memory
from service.decoding.pool import DecoderPool
from service.extensions import Extension, load_extensions
from service.inference.engine import (
    InferenceItem,
    ServedModel,
    ServedModels,
    check_same_input,
)
from service.inference.workers import InferenceWorkers
from service.lifecycle.loading import (
    CheckedModel,
    CheckpointSource,
    Infer,
    Load,
    run_in_daemon_thread,
)
from service.settings import ServiceSettings
from service.telemetry.observation import PROBES

_Phase = Literal["starting", "ready", "stopping"]
_RETRY_AFTER_S = 5
_SLOW_RELOAD_S = 60.0
_DOCUMENTATION = ("/docs", "/openapi.json")  # paths that need no model
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


class Lifecycle:
    """Loads the models, starts what answers requests, checks its health, reloads, and stops it.

    The phase only advances: starting, ready, stopping. Every failure is stored and ends the
    process. `phase`, `failure`, `stop` and `fail` are thread-safe.

    Args:
        sources: Of the checkpoints, which are served once all of them are healthy.
        shadow_source: Of the shadow, by default of the first model: its name is that of the model
            that it is compared with. None for no shadow.
        load: Loads and checks the model of a source; by default on the CPU.
        extensions: By name; by default, those of the installed distributions without options.
        decoder: None for a new one.
        waits: If True, `running` waits until the service is ready, and raises RuntimeError if that
            fails; if False, requests are refused meanwhile.

    Attributes:
        models: The served ones; empty during the start.
        shadow: Its name is that of the model that it is compared with; None for none.
        failure: The reason of the first failure.
        last_reload_successful: False after a reload that was refused for a model, and while one
            takes longer than `_SLOW_RELOAD_S`.
        on_ready: Called once, when the service is ready.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        sources: Sequence[CheckpointSource] = (),
        shadow_source: CheckpointSource | None = None,
        load: Load = CheckpointSource.load,
        extensions: Mapping[str, Extension] | None = None,
        decoder: DecoderPool | None = None,
        waits: bool = False,
    ) -> None:
        self.models = ServedModels()
        self.shadow: CheckedModel | None = None
        self.extensions = load_extensions() if extensions is None else extensions
        self.decoder = decoder or DecoderPool(settings.images, settings.decoding)
        self.last_reload_successful = True
        self.on_ready: Callable[[], None] = lambda: None
        self._settings = settings
        self._sources = sources
        self._shadow_source = shadow_source
        self._load = load
        self._waits = waits
        self._threads = torch.get_num_threads()
        self._checked: list[CheckedModel] = []
        self._started, self._reload = asyncio.Event(), asyncio.Event()
        self._reloading = False
        self.phase: _Phase = "starting"
        self.failure: str | None = None
        self._lock = threading.RLock()  # a signal handler may run while this thread holds it

    @property
    def fault(self) -> str | None:
        """Why the service is not ready for requests with images, or None."""
        if self.failure is not None:
            return "a health check failed; the service is stopping"
        if self.phase == "starting":
            return "the models are being loaded"
        if self.phase == "stopping":
            return "the service is stopping"
        if not self.decoder.is_working:
            return "the image decoder does not work"
        faults = (extension.fault() for extension in self.extensions.values())
        return next((fault for fault in faults if fault is not None), None)

    def check_ready(self) -> None:
        """Checks that the service is ready.

        Raises:
            NotReady: With the fault, if it is not.
        """
        if self.fault is not None:
            raise NotReady(self.fault, _RETRY_AFTER_S)

    def check_request(self, scope: Scope) -> None:
        """Checks that a request can be answered; during a normal stop the models still answer.

        Raises:
            NotReady: If no model can answer it, except for a probe or the documentation.
        """
        answers = self.phase == "ready" or (self.models and self.failure is None)
        path = scope["path"]
        if not answers and path not in PROBES and not path.startswith(_DOCUMENTATION):
            self.check_ready()

    def is_closing(self) -> bool:
        """True unless ready: then responses close their connection."""
        return self.phase != "ready"

    def serve(self, models: ServedModels) -> None:
        """Serves loaded models from now on; ends the start."""
        self.models.replace(*models.values())
        with self._lock:
            if self.phase == "starting":
                self.phase = "ready"

    def stop(self) -> None:
        """Requests a normal exit."""
        with self._lock:
            self.phase = "stopping"

    def fail(self, reason: str) -> None:
        """Requests an exit with an error. Only the first reason is stored."""
        with self._lock:
            self.phase = "stopping"
            self.failure = self.failure or reason

    @asynccontextmanager
    async def running(self, inference: InferenceWorkers) -> AsyncIterator[None]:
        """Runs the service while the context is open; in the main thread, SIGHUP reloads.

        Raises:
            RuntimeError: With `waits`, for a failure of the start.
        """
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        before = None
        if is_main:
            before = signal.signal(
                signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(self._reload.set)
            )
        task = asyncio.create_task(self._run(inference))
        try:
            if self._waits:
                await self._started.wait()
                if self.failure is not None:
                    raise RuntimeError(self.failure)
            yield
        finally:
            self.stop()
            if is_main:
                signal.signal(signal.SIGHUP, before or signal.SIG_DFL)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, inference: InferenceWorkers) -> None:
        try:
            with ExitStack() as parts:
                parts.callback(self.decoder.close)
                for extension in self.extensions.values():
                    parts.enter_context(extension.running())
                parts.enter_context(inference.running())
                infer: Infer = partial(_infer, inference)
                _, models = await asyncio.gather(self.decoder.start(), self._load_models())
                if await self._check_health(infer, timeout_s=None):
                    for checked in self._checked:
                        await checked.warm_up(infer, self._settings.max_batch_rows)
                    if self._sources:
                        parts.enter_context(_frozen_gc())
                    # Of this thread, which makes the answers: at each small product of matrices, a
                    # second thread would be woken up and waited for.
                    torch.set_num_threads(1)
                    self.serve(models)
                    self.on_ready()
                    self._started.set()
                    progress = partial(self._progress, inference)
                    await asyncio.gather(
                        self._probe_forever(infer, progress), self._reload_forever(infer)
                    )
        except (EulerLoRAError, OSError) as error:
            self.fail(str(error))
        except Exception as error:
            logger.exception("the service failed")
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            self._started.set()

    async def _load_models(self) -> ServedModels:
        for source in self._sources:
            load = partial(self._load, source, self._loaded)
            self._checked.append(await self._in_loader(load))
            self._checked[-1].log_choices()
        models = ServedModels(checked.served for checked in self._checked)
        if self._shadow_source is not None:
            await self._load_shadow(self._shadow_source, models)
        return models

    async def _in_loader(self, load: Callable[[], _Result]) -> _Result:
        """Runs `load` in a daemon thread with the process's number of torch's threads.

        A new thread has by default the number of the thread that set one last.
        """

        def run() -> _Result:
            torch.set_num_threads(self._threads)
            loaded = load()
            trim_memory()
            return loaded

        return await run_in_daemon_thread(run)

    async def _load_shadow(self, source: CheckpointSource, models: ServedModels) -> None:
        name = source.name or models.default
        if name not in models:
            names = ", ".join(models)
            raise SettingsError(f"--shadow: expected a served model ({names}), got {name}")
        load = partial(self._load, replace(source, name=name), self._loaded)
        shadow = await self._in_loader(load)
        check_same_input(shadow.served, models[name])
        self.shadow = shadow
        shadow.log_choices()
        logger.info("model %s: compared with the shadow %s", name, shadow.model.revision)

    @property
    def _loaded(self) -> list[InferenceModel]:
        return [checked.model for checked in self._checked]

    async def _check_health(
        self, infer: Infer, timeout_s: float | None, progress: Callable[[], object] = lambda: None
    ) -> bool:
        """Checks all models until one is unhealthy; stores its failure."""
        for checked in tuple(self._checked):
            fault = await checked.fault(infer, timeout_s, progress)
            if fault is not None:
                self.fail(fault)
                return False
        return True

    async def _probe_forever(self, infer: Infer, progress: Callable[[], object]) -> None:
        life, healthy = self._settings.life, True
        while healthy:
            await asyncio.sleep(life.probe_interval_s)
            healthy = await self._check_health(infer, life.probe_timeout_s, progress)

    def _progress(self, inference: InferenceWorkers) -> object:
        # During a reload, the first pass of a compiled model may take minutes.
        return object() if self._reloading else inference.last_result_at

    async def _reload_forever(self, infer: Infer) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self._reloading = True
            self.last_reload_successful = True
            serve = partial(self._serve_revision, infer)
            for index, checked in enumerate(self._checked):
                self._checked[index] = await self._reloaded("model", checked, serve)
            if self.shadow is not None:
                self.shadow = await self._reloaded("shadow of", self.shadow, self._check_shadow)
            self._reloading = False

    async def _serve_revision(self, infer: Infer, new: CheckedModel) -> None:
        fault = await new.fault(infer, timeout_s=None)
        if fault is not None:
            raise CheckpointError(new.source.folder, fault)
        await new.warm_up(infer, self._settings.max_batch_rows)
        self.models.replace(new.served)

    async def _check_shadow(self, new: CheckedModel) -> None:
        check_same_input(new.served, self.models[new.served.name])

    async def _reloaded(
        self, kind: str, old: CheckedModel, use: Callable[[CheckedModel], Awaitable[None]]
    ) -> CheckedModel:
        """The new revision in a folder, which `use` accepts; the current one if that fails."""
        name = f"{kind} {old.served.name}"
        try:
            loading = self._in_loader(lambda: old.newer_revision(self._load, self._loaded))
            new = await self._noticed_if_slow(name, loading)
            if new is None:
                logger.info("%s: revision %s, verified", name, old.model.revision)
                return old
            await use(new)
        except Exception as error:
            self.last_reload_successful = False
            is_defect = not isinstance(error, EulerLoRAError | OSError)
            consequence = f"{name}: still serving revision {old.model.revision}"
            logger.error("%s; %s", consequence, str(error), exc_info=is_defect)
            error.__traceback__ = None  # it holds the new model, in a cycle with the error
            return old
        new.log_choices()
        logger.info("%s: revision %s -> %s", name, old.model.revision, new.model.revision)
        return new

    async def _noticed_if_slow(self, name: str, loading: Awaitable[_Result]) -> _Result:
        """Awaits a reload; logs a warning every `_SLOW_RELOAD_S`."""
        task, started_s = asyncio.ensure_future(loading), time.monotonic()
        was_successful = self.last_reload_successful
        try:
            while not (await asyncio.wait([task], timeout=_SLOW_RELOAD_S))[0]:
                self.last_reload_successful = False
                seconds = time.monotonic() - started_s
                logger.warning("%s: the reload has taken %.0f s and goes on", name, seconds)
            self.last_reload_successful = was_successful
            return task.result()
        finally:
            task.cancel()


async def _infer(inference: InferenceWorkers, served: ServedModel, item: InferenceItem) -> Tensor:
    """As `Infer`, through the queue of requests."""
    result = await asyncio.wrap_future(inference.submit(served, item))
    return result.trajectories.flat_log_probabilities[0]


@contextmanager
def _frozen_gc() -> Iterator[None]:
    """Excludes all existing objects from garbage collection while the context is open.

    Libraries hold about 350,000 objects until exit. A full collection of them takes a quarter of
    a second, during which no request is answered, every few hundred requests. A replaced model
    is freed by its reference count.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
