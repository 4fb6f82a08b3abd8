"""The supervisor loads the models, checks their health and reloads changed checkpoints."""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import FastAPI
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora_contract.errors import CheckpointError, EulerLoRAError
from service.inference.engine import InferenceItem, ServedModel, ServedModels
from service.lifecycle.loading import (
    CheckedModel,
    CheckpointSource,
    Load,
    health_check,
    newer_revision,
    run_in_daemon_thread,
    warm_up,
)
from service.lifecycle.phase import Gate, Lifecycle
from service.settings import LifeSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Service:
    """An application and its inference queue; both run while the application's lifespan does.

    Attributes:
        infer: Returns the log-probabilities (trajectories, classes) of an internal item, through
            the queue that requests use.
        batch_rows: Rows of a full batch.
        count_problem: Counts the code of a problem that the application did not answer.
    """

    application: FastAPI
    infer: Callable[[ServedModel, InferenceItem], Awaitable[Tensor]]
    batch_rows: int
    count_problem: Callable[[str], None]


@dataclass
class Supervisor:
    """Runs a service, from loading its checkpoints to shutdown.

    Reports every failure to the lifecycle, which ends the process.

    Attributes:
        sources: Of the checkpoints.
        prepare: Starts what needs no model, while the models are loaded.
        load: Loads and checks the model in a folder.
        create: Returns the service for all models, which waits for what `prepare` starts.
        on_ready: Called once, when the service is ready.
    """

    sources: Sequence[CheckpointSource]
    prepare: Callable[[], Coroutine[Any, Any, None]]
    load: Load
    create: Callable[[ServedModels], Service]
    gate: Gate
    lifecycle: Lifecycle
    settings: LifeSettings
    on_ready: Callable[[ServedModels], None] = lambda _: None
    _supervised: list[CheckedModel] = field(default_factory=list)
    _reload: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Loads and serves while the context is open; in the main thread, SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            if is_main:
                loop.remove_signal_handler(signal.SIGHUP)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        preparation = asyncio.create_task(self.prepare())
        try:
            await self._load()
            models = ServedModels(checked.served for checked in self._supervised)
            service = self.create(models)
            application = service.application
            async with application.router.lifespan_context(application):
                if await self._check_health(service, timeout_s=None):
                    await self._warm_up(service)
                    with freeze_gc():
                        await self._serve(service, models)
        except (EulerLoRAError, OSError) as error:
            self.lifecycle.fail(str(error))
        except Exception as error:
            logger.exception("the service failed")
            self.lifecycle.fail(f"{type(error).__name__}: {error}")
        finally:
            preparation.cancel()
            await asyncio.gather(preparation, return_exceptions=True)

    async def _serve(self, service: Service, models: ServedModels) -> None:
        self.gate.open(service.application, service.count_problem)
        self.lifecycle.become_ready()
        self.on_ready(models)
        await asyncio.gather(self._probe_forever(service), self._reload_forever(service, models))

    async def _load(self) -> None:
        for source in self.sources:
            self._supervised.append(
                await run_in_daemon_thread(partial(self.load, source, self._loaded))
            )

    @property
    def _loaded(self) -> list[EulerLoRA]:
        return [checked.model for checked in self._supervised]

    async def _check_health(self, service: Service, timeout_s: float | None) -> bool:
        """Returns True if all models are healthy; otherwise reports the failure."""
        for checked in tuple(self._supervised):
            fault = await health_check(checked, partial(service.infer, checked.served), timeout_s)
            if fault is not None:
                self.lifecycle.fail(fault)
                return False
        return True

    async def _warm_up(self, service: Service) -> None:
        for checked in self._supervised:
            await warm_up(checked, partial(service.infer, checked.served), service.batch_rows)

    async def _probe_forever(self, service: Service) -> None:
        healthy = True
        while healthy:
            await asyncio.sleep(self.settings.probe_interval_s)
            healthy = await self._check_health(service, self.settings.probe_timeout_s)

    async def _reload_forever(self, service: Service, models: ServedModels) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            for index in range(len(self._supervised)):
                await self._reload_model(index, service, models)

    async def _reload_model(self, index: int, service: Service, models: ServedModels) -> None:
        """Serves the new revision in a folder; keeps the current one if that fails."""
        old = self._supervised[index]
        try:
            new = await run_in_daemon_thread(lambda: newer_revision(old, self.load, self._loaded))
            if new is None:
                logger.info("model %s: revision %s, verified", old.name, old.model.revision)
                return
            infer = partial(service.infer, new.served)
            fault = await health_check(new, infer, timeout_s=None)
            if fault is not None:
                raise CheckpointError(new.source.folder, fault)
            await warm_up(new, infer, service.batch_rows)
            models.replace(new.served)
        except Exception as error:
            is_defect = not isinstance(error, EulerLoRAError | OSError)
            consequence = f"model {old.name}: still serving revision {old.model.revision}"
            logger.error("%s; %s", consequence, str(error), exc_info=is_defect)
            error.__traceback__ = None  # it holds the new model, in a cycle with the error
            return
        self._supervised[index] = new
        logger.info("model %s: revision %s -> %s", old.name, old.model.revision, new.model.revision)


@contextmanager
def freeze_gc() -> Iterator[None]:
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
