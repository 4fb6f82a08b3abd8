"""Loads the models, watches them, and takes new revisions while the old ones serve."""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eulerlora.errors import CheckpointError, EulerLoRAError
from eulerlora.model import EulerLoRA
from service.app import Service
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.gate import Gate
from service.lifecycle.health_check import fault_of, warm_up
from service.lifecycle.loading import CheckedModel, Load, newer_revision
from service.lifecycle.loading_thread import in_a_thread
from service.lifecycle.phase import Lifecycle
from service.settings import LifeSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What the supervisor makes a service of.

    load: a folder -> its checked model. serve: all models -> what answers clients. on_ready:
    called once.
    """

    load: Load
    serve: Callable[[ServedModels], Service]
    on_ready: Callable[[ServedModels], None]


@dataclass(frozen=True)
class _Watched:
    checked: CheckedModel
    served: ServedModel


class Supervisor:
    """The life of a service with the checkpoints in `folders`, from loading to its end.

    Whatever fails on the way is told to the lifecycle, which ends the process.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        parts: Parts,
        gate: Gate,
        lifecycle: Lifecycle,
        settings: LifeSettings,
    ) -> None:
        self._folders = folders
        self._parts = parts
        self._gate = gate
        self._lifecycle = lifecycle
        self._settings = settings
        self._watched: list[_Watched] = []
        self._reload = asyncio.Event()

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Loads and serves while the block runs; SIGHUP reads the folders again."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        work = asyncio.create_task(self._work())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _work(self) -> None:
        try:
            await self._load()
            models = ServedModels(each.served for each in self._watched)
            service = self._parts.serve(models)
            application = service.application
            async with application.router.lifespan_context(application):
                if await self._all_right(service, timeout_s=None):
                    await self._warm_up(service)
                    with spared():
                        self._gate.application = application
                        self._gate.count = service.refused
                        self._lifecycle.become_ready()
                        self._parts.on_ready(models)
                        await asyncio.gather(
                            self._probe_for_ever(service), self._reload_for_ever(service, models)
                        )
        except (EulerLoRAError, OSError) as error:
            self._lifecycle.fail(str(error))
        except Exception as error:
            logger.exception("the service failed")
            self._lifecycle.fail(f"{type(error).__name__}: {error}")

    async def _load(self) -> None:
        for folder in self._folders:
            checked = await in_a_thread(partial(self._parts.load, folder, self._models))
            self._watched.append(_Watched(checked, ServedModel.of(checked.model)))

    @property
    def _models(self) -> list[EulerLoRA]:
        return [each.checked.model for each in self._watched]

    async def _all_right(self, service: Service, timeout_s: float | None) -> bool:
        for each in tuple(self._watched):
            ask = partial(service.ask, each.served)
            fault = await fault_of(each.checked, ask, timeout_s)
            if fault is not None:
                self._lifecycle.fail(fault)
                return False
        return True

    async def _warm_up(self, service: Service) -> None:
        """Runs full batches of every model, so that what they take is known before others ask."""
        for each in self._watched:
            await warm_up(each.checked, partial(service.ask, each.served), service.batch_rows)

    async def _probe_for_ever(self, service: Service) -> None:
        right = True
        while right:
            await asyncio.sleep(self._settings.probe_interval_s)
            right = await self._all_right(service, self._settings.probe_timeout_s)

    async def _reload_for_ever(self, service: Service, models: ServedModels) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            for index in range(len(self._watched)):
                await self._take_newer(index, service, models)

    async def _take_newer(self, index: int, service: Service, models: ServedModels) -> None:
        """Serves what is now in a folder; after a failure the old model goes on."""
        old = self._watched[index].checked
        try:
            new = await in_a_thread(lambda: newer_revision(old, self._parts.load, self._models))
            if new is None:
                return
            served = ServedModel.of(new.model)
            fault = await fault_of(new, partial(service.ask, served), timeout_s=None)
            if fault is not None:
                raise CheckpointError(new.folder, fault)
            await warm_up(new, partial(service.ask, served), service.batch_rows)
            models.replace(served)
        except Exception as error:
            defect = not isinstance(error, EulerLoRAError | OSError)
            kept = f"model {old.name}: revision {old.model.revision} is kept"
            logger.error("%s; %s", kept, error, exc_info=defect)
            return
        self._watched[index] = _Watched(new, served)
        logger.info("model %s: revision %s -> %s", old.name, old.model.revision, new.model.revision)


@contextmanager
def spared() -> Iterator[None]:
    """Lets the garbage collector pass over all that is in memory now, while the block runs.

    Some 350,000 objects of libraries stay to the end. To look at all of them takes a quarter of a
    second, in which no request is answered, every few hundred requests. A model that is replaced
    is freed all the same, for it is in no circle of references.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
