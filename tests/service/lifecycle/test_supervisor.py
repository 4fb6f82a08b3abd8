"""A service's life from loading to its end, with a made-up queue in place of the real one."""

import asyncio
import gc
import logging
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from torch import Tensor

from eulerlora.checkpoint import save_checkpoint, stored_revision
from eulerlora.predict import predict_rows
from eulerlora.settings import PLAIN
from service.app import Service
from service.inference.engine import Question
from service.inference.models import ServedModel, ServedModels
from service.lifecycle import supervisor
from service.lifecycle.gate import Gate
from service.lifecycle.loading import load_checked, newer_revision
from service.lifecycle.phase import Lifecycle
from service.lifecycle.supervisor import Parts, Supervisor
from service.settings import LifeSettings
from tests.damaged_checkpoints import DAMAGES

TIMEOUT_S = 60


async def ask(served: ServedModel, question: Question) -> Tensor:
    return predict_rows(served.model.runtime, question.pixels[None], [question.draw])[0]


@dataclass
class House:
    """What a test sees of a supervised house."""

    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    events: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    models: Any = None
    ask: Callable[[ServedModel, Question], Awaitable[Tensor]] = ask
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = Gate(self.lifecycle)

    def revision(self, name: str) -> str:
        return str(self.models[name].model.revision)

    def supervise(self, *folders: Path, probe_interval_s: float = 1000, **parts: Any) -> Supervisor:
        chosen: dict[str, Any] = {
            "load": partial(load_checked, device=torch.device("cpu"), runtime=PLAIN),
            "serve": self.serve,
            "on_ready": lambda models: self.events.append(f"ready with {', '.join(models)}"),
        }
        settings = LifeSettings(probe_interval_s=probe_interval_s, probe_timeout_s=TIMEOUT_S)
        return Supervisor(folders, Parts(**chosen | parts), self.gate, self.lifecycle, settings)

    def serve(self, models: ServedModels) -> Service:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            self.events.append("served")
            try:
                yield
            finally:
                self.events.append("ended")

        self.models = models
        return Service(FastAPI(lifespan=lifespan), self.ask, 1, self.refused.append)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def successor(make_network, make_config, tmp_path: Path) -> Path:
    """Another revision of the tiny checkpoint, on another backbone."""
    network = make_network(seed=7)
    save_checkpoint(tmp_path / "successor", network, make_config(network), "# card\n")
    return tmp_path / "successor"


def test_a_service_is_ready_once_its_models_gave_their_known_answers(
    house: House, checkpoint_folder: Path
) -> None:
    phases = []

    async def asked(served: ServedModel, question: Question) -> Tensor:
        phases.append(house.lifecycle.phase)
        assert house.gate.application is None
        return await ask(served, question)

    house.ask = asked

    async def story() -> None:
        async with house.supervise(checkpoint_folder).running():
            assert house.lifecycle.phase == "starting"
            await until(lambda: house.lifecycle.phase != "starting")
            assert house.lifecycle.phase == "ready"
            assert house.gate.application is not None
            house.gate.refused("made up")

    asyncio.run(story())
    assert house.events == ["served", "ready with tiny", "ended"]
    assert house.refused == ["made up"]
    assert phases == ["starting"] * 4  # det, stoch twice, a full batch; before anybody else


def test_the_garbage_collector_passes_over_what_is_there_while_the_service_is_ready(
    house: House, checkpoint_folder: Path
) -> None:
    found = []

    async def story() -> None:
        async with house.supervise(checkpoint_folder).running():
            await until(lambda: house.lifecycle.phase != "starting")
            found.append(gc.get_freeze_count())

    asyncio.run(story())
    assert found[0] > 10_000
    assert gc.get_freeze_count() == 0


def test_a_checkpoint_that_cannot_be_loaded_is_a_failure_with_file_and_reason(
    house: House, checkpoint_copy: Path
) -> None:
    DAMAGES["a wrong known answer"].apply(checkpoint_copy)

    async def story() -> None:
        async with house.supervise(checkpoint_copy).running():
            await until(lambda: house.lifecycle.phase == "stopping")

    asyncio.run(story())
    assert str(house.lifecycle.failure).startswith(f"{checkpoint_copy / 'known_answer.json'}: ")
    assert house.events == []


def test_a_queue_that_answers_wrongly_at_the_start_is_a_failure(
    house: House, checkpoint_folder: Path
) -> None:
    async def wrong(served: ServedModel, question: Question) -> Tensor:
        return (await ask(served, question)).roll(1, dims=1)

    house.ask = wrong

    async def story() -> None:
        async with house.supervise(checkpoint_folder).running():
            await until(lambda: house.lifecycle.phase == "stopping")

    asyncio.run(story())
    assert "model tiny: the known answer is wrong" in str(house.lifecycle.failure)
    assert house.events == ["served", "ended"]


def test_a_model_that_breaks_while_it_serves_is_found_by_the_next_probe(
    house: House, checkpoint_copy: Path
) -> None:
    async def story() -> None:
        async with house.supervise(checkpoint_copy, probe_interval_s=0.02).running():
            await until(lambda: house.lifecycle.phase == "ready")
            with torch.no_grad():
                house.models["tiny"].model.network.heads.bias[:, 0] += 3
            await until(lambda: house.lifecycle.phase == "stopping")
            assert house.events[-1] != "ended"  # accepted requests are still answered

    asyncio.run(story())
    assert "model tiny: the known answer is wrong" in str(house.lifecycle.failure)


def test_a_defect_is_a_failure_and_not_silence(house: House, checkpoint_folder: Path) -> None:
    def broken(_: object) -> FastAPI:
        raise ZeroDivisionError("made up")

    async def story() -> None:
        async with house.supervise(checkpoint_folder, serve=broken).running():
            await until(lambda: house.lifecycle.phase == "stopping")

    asyncio.run(story())
    assert house.lifecycle.failure == "ZeroDivisionError: made up"


def put_in_place(folder: Path, new: Path) -> None:
    """Replaces a folder as an operator should: by renaming."""
    folder.rename(folder.with_name("replaced"))
    new.rename(folder)


def test_sighup_serves_the_new_revision_and_says_so(
    house: House, checkpoint_copy: Path, successor: Path, caplog
) -> None:
    caplog.set_level(logging.INFO, "service")
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)
    asked: list[str] = []

    async def counted(served: ServedModel, question: Question) -> Tensor:
        asked.append(served.revision)
        return await ask(served, question)

    house.ask = counted

    async def story() -> None:
        async with house.supervise(checkpoint_copy, probe_interval_s=0.02).running():
            await until(lambda: house.lifecycle.phase == "ready")
            put_in_place(checkpoint_copy, successor)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: house.revision("tiny") == after)
            seen = len(asked)
            await until(lambda: len(asked) > seen + 6)  # probes of the new model, right ones
            assert house.lifecycle.phase == "ready"

    asyncio.run(story())
    assert f"model tiny: revision {before} -> {after}" in caplog.messages


def test_sighup_without_a_change_loads_nothing(
    house: House, checkpoint_copy: Path, successor: Path, monkeypatch
) -> None:
    loaded: list[Path] = []
    found: list[object] = []

    def look(*arguments: Any) -> Any:
        found.append(newer_revision(*arguments))
        return found[-1]

    monkeypatch.setattr(supervisor, "newer_revision", look)

    def load(folder: Path, others: Any) -> Any:
        loaded.append(folder)
        return load_checked(folder, others, torch.device("cpu"), PLAIN)

    async def story() -> None:
        async with house.supervise(checkpoint_copy, load=load).running():
            await until(lambda: house.lifecycle.phase == "ready")
            served = house.models["tiny"]
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: found == [None])
            assert house.models["tiny"] is served
            put_in_place(checkpoint_copy, successor)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: house.models["tiny"] is not served)

    asyncio.run(story())
    assert loaded == [checkpoint_copy] * 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_new_revision_leaves_the_old_one_serving(
    house: House, checkpoint_copy: Path, successor: Path, caplog, damage: str
) -> None:
    file, reason, apply = DAMAGES[damage]
    before = stored_revision(checkpoint_copy)

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]

    async def story() -> None:
        async with house.supervise(checkpoint_copy).running():
            await until(lambda: house.lifecycle.phase == "ready")
            served = house.models["tiny"]
            apply(successor)
            put_in_place(checkpoint_copy, successor)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: bool(told()))
            assert house.models["tiny"] is served
            assert house.lifecycle.phase == "ready"

    asyncio.run(story())
    (line,) = told()
    assert line.startswith(f"model tiny: revision {before} is kept; {checkpoint_copy / file}: ")
    assert reason in line


def test_a_new_revision_that_the_queue_answers_wrongly_is_not_served(
    house: House, checkpoint_copy: Path, successor: Path, caplog
) -> None:
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)

    async def asked(served: ServedModel, question: Question) -> Tensor:
        answer = await ask(served, question)
        return answer.roll(1, dims=1) if served.model.revision == after else answer

    house.ask = asked

    async def story() -> None:
        async with house.supervise(checkpoint_copy).running():
            await until(lambda: house.lifecycle.phase == "ready")
            put_in_place(checkpoint_copy, successor)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: "is kept" in caplog.text)
            assert house.revision("tiny") == before
            assert house.lifecycle.phase == "ready"

    asyncio.run(story())
    assert "the known answer is wrong" in caplog.text


def test_one_bad_folder_does_not_keep_another_from_its_new_revision(
    house: House, checkpoint_copy: Path, successor: Path, make_network, make_config, caplog
) -> None:
    network = make_network(seed=3)
    other = checkpoint_copy.with_name("other")
    save_checkpoint(other, network, make_config(network, name="other"), "# card\n")

    async def story() -> None:
        async with house.supervise(other, checkpoint_copy).running():
            await until(lambda: house.lifecycle.phase == "ready")
            kept = house.revision("other")
            shutil.rmtree(other)
            after = stored_revision(successor)
            put_in_place(checkpoint_copy, successor)
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: house.revision("tiny") == after)
            assert house.revision("other") == kept

    asyncio.run(story())
    assert "model other: " in caplog.text


def test_an_end_during_the_loading_does_not_wait_for_it(
    house: House, checkpoint_folder: Path
) -> None:
    async def story() -> None:
        begun, gate = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def load(*_: object) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert gate.wait(TIMEOUT_S)

        async with house.supervise(checkpoint_folder, load=load).running():
            await begun.wait()
        gate.set()

    asyncio.run(story())
    assert house.events == []
    assert house.lifecycle.failure is None
