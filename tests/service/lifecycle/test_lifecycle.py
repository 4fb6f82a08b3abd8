"""The lifecycle from loading to shutdown, with fake decoders and inference workers."""

import asyncio
import gc
import logging
import math
import shutil
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from eulerlora.checkpoint.files import save_checkpoint, stored_revision
from eulerlora_contract.errors import CheckpointError
from service.inference.engine import InferenceItem, ServedModel
from service.lifecycle.lifecycle import Lifecycle
from service.lifecycle.loading import CheckpointSource
from service.settings import ServiceSettings
from tests.conftest import TINY_BACKBONE, predict_rows
from tests.damaged_checkpoints import DAMAGES
from tests.service.harness import WorkingDecoder

pytestmark = pytest.mark.anyio

TIMEOUT_S = 120


async def infer(served: ServedModel, item: InferenceItem) -> Tensor:
    return predict_rows(served.model.runtime, item.pixels[None], [item.draw])[0]


class Inference:
    """Stands for the inference workers; records their start and end in `events`."""

    def __init__(self, infer: Callable[..., Awaitable[Tensor]], events: list[str]) -> None:
        self.infer = infer
        self.events = events
        self.last_result_at = math.nan  # not equal to itself, as after an answer

    @contextmanager
    def running(self) -> Iterator[None]:
        self.events.append("started")
        try:
            yield
        finally:
            self.events.append("ended")

    def submit(self, served: ServedModel, item: InferenceItem) -> Future[Any]:
        async def result() -> Any:
            answer = await self.infer(served, item)
            return SimpleNamespace(
                trajectories=SimpleNamespace(flat_log_probabilities=answer[None])
            )

        return asyncio.run_coroutine_threadsafe(result(), asyncio.get_running_loop())


@dataclass
class Harness:
    """A lifecycle without decoders, and its application.

    events: start and end of inference, and readiness.
    """

    events: list[str] = field(default_factory=list)
    infer: Callable[..., Awaitable[Tensor]] = infer
    lifecycle: Lifecycle = field(init=False)
    inference: Any = field(init=False)

    def revision(self, name: str) -> str:
        return self.lifecycle.models[name].model.revision

    @asynccontextmanager
    async def running(
        self,
        *sources: Path | CheckpointSource,
        probe_interval_s: float = 1000,
        probe_timeout_s: float = TIMEOUT_S,
        **parts: Any,
    ) -> AsyncIterator[Lifecycle]:
        life = {"probe_interval_s": probe_interval_s, "probe_timeout_s": probe_timeout_s}
        decoder: Any = WorkingDecoder()
        self.lifecycle = Lifecycle(
            ServiceSettings.model_validate({"life": life, "max_batch_rows": 1}),
            [CheckpointSource(one) if isinstance(one, Path) else one for one in sources],
            decoder=decoder,
            **parts,
        )
        self.lifecycle.on_ready = lambda: self.events.append(
            f"ready with {', '.join(self.lifecycle.models)}"
        )
        self.inference = Inference(self.infer, self.events)
        async with self.lifecycle.running(self.inference):
            yield self.lifecycle


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def successor(make_network, make_config, tmp_path: Path) -> Path:
    """Another revision of the tiny checkpoint, with another backbone."""
    network = make_network(seed=7)
    save_checkpoint(tmp_path / "successor", network, make_config(network), "# card\n")
    return tmp_path / "successor"


async def test_the_service_is_ready_after_the_health_checks_and_the_warm_up(
    harness: Harness, checkpoint_folder: Path
) -> None:
    phases = []

    async def infer_and_record(served: ServedModel, item: InferenceItem) -> Tensor:
        phases.append(harness.lifecycle.phase)
        assert not harness.lifecycle.models
        return await infer(served, item)

    harness.infer = infer_and_record

    async with harness.running(checkpoint_folder) as lifecycle:
        assert lifecycle.phase == "starting"
        await until(lambda: lifecycle.phase != "starting")
        assert lifecycle.phase == "ready"
    assert harness.events == ["started", "ready with tiny", "ended"]
    assert phases == ["starting"] * 4  # det, stoch twice, the warm-up


async def test_the_thread_of_the_answers_wakes_no_other_and_models_keep_their_threads(
    harness: Harness, checkpoint_folder: Path
) -> None:
    of_loads: list[int] = []

    def load(source: CheckpointSource, others: Any) -> Any:
        of_loads.append(torch.get_num_threads())
        return source.load(others)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        async with harness.running(checkpoint_folder, load=load) as lifecycle:
            await until(lambda: lifecycle.phase != "starting")
            assert torch.get_num_threads() == 1
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: len(of_loads) == 2)
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert of_loads == [2, 2]


async def infer_wrongly(served: ServedModel, item: InferenceItem) -> Tensor:
    return (await infer(served, item)).roll(1, dims=1)


def load_nothing(*_: object) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("damage", "infer", "parts", "failure"),
    [
        ("a wrong known answer", infer, {}, "known_answer.json: "),
        (None, infer_wrongly, {}, "model tiny: "),
        (None, infer, {"load": load_nothing}, "ZeroDivisionError"),
    ],
    ids=["the checkpoint", "the health check", "a defect"],
)
async def test_a_fault_at_the_start_is_a_failure_with_its_cause(
    harness: Harness, checkpoint_copy: Path, damage, infer, parts, failure
) -> None:
    if damage is not None:
        DAMAGES[damage].apply(checkpoint_copy)
    harness.infer = infer

    async with harness.running(checkpoint_copy, **parts) as lifecycle:
        await until(lambda: lifecycle.phase == "stopping")
    assert failure in str(lifecycle.failure)
    assert harness.events == ["started", "ended"]


async def test_a_model_that_breaks_later_fails_the_next_probe(
    harness: Harness, checkpoint_copy: Path
) -> None:
    async with harness.running(checkpoint_copy, probe_interval_s=0.02):
        await until(lambda: harness.lifecycle.phase == "ready")
        with torch.no_grad():
            harness.lifecycle.models["tiny"].model.network.heads.bias[:, 0] += 3
        await until(lambda: harness.lifecycle.phase == "stopping")
        assert harness.events[-1] != "ended"  # accepted requests still get a response
    assert "model tiny: the known answer is wrong" in str(harness.lifecycle.failure)


async def test_a_model_that_no_longer_answers_ends_the_service_but_not_during_a_reload(
    harness: Harness, checkpoint_folder: Path, caplog
) -> None:
    loading, gate = threading.Event(), threading.Event()

    def load(source: CheckpointSource, others: Any) -> Any:
        if harness.lifecycle.phase == "ready":
            loading.set()
            assert gate.wait(TIMEOUT_S)
        return source.load(others)

    async def hang(*_: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    late = {"probe_interval_s": 0.01, "probe_timeout_s": 0.01}
    async with harness.running(checkpoint_folder, load=load, **late) as lifecycle:
        await until(lambda: lifecycle.phase == "ready")
        signal.raise_signal(signal.SIGHUP)
        await until(loading.is_set)
        harness.inference.infer, harness.inference.last_result_at = hang, 1.0
        caplog.clear()
        await until(lambda: caplog.text.count("no known answer within 0.01 s") > 5)
        assert lifecycle.phase == "ready"
        gate.set()
        await until(lambda: lifecycle.phase == "stopping")
    assert "no known answer within 0.01 s" in str(lifecycle.failure)


def replace_folder(folder: Path, new: Path) -> None:
    """Replaces a folder by renaming, as the documentation recommends."""
    folder.rename(folder.with_name("replaced"))
    new.rename(folder)


async def test_sighup_serves_and_logs_the_new_revision(
    harness: Harness, checkpoint_copy: Path, successor: Path, caplog
) -> None:
    caplog.set_level(logging.INFO, "service")
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)
    revisions: list[str] = []

    async def infer_and_record(served: ServedModel, item: InferenceItem) -> Tensor:
        revisions.append(served.model.revision)
        return await infer(served, item)

    harness.infer = infer_and_record

    async with harness.running(checkpoint_copy, probe_interval_s=0.02):
        await until(lambda: harness.lifecycle.phase == "ready")
        replace_folder(checkpoint_copy, successor)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: harness.revision("tiny") == after)
        count = len(revisions)
        await until(lambda: len(revisions) > count + 6)  # successful probes of the new model
        assert harness.lifecycle.phase == "ready"
    assert f"model tiny: revision {before} -> {after}" in caplog.messages


async def test_a_checkpoint_is_served_under_the_name_that_it_is_given(
    harness: Harness, checkpoint_folder: Path
) -> None:
    given = CheckpointSource(checkpoint_folder, "given")
    async with harness.running(checkpoint_folder, given):
        await until(lambda: harness.lifecycle.phase == "ready")
        assert list(harness.lifecycle.models) == ["tiny", "given"]
        assert harness.revision("tiny") == harness.revision("given")


async def test_the_shadow_has_the_name_of_its_model_and_is_reloaded_after_it(
    harness: Harness, checkpoint_folder: Path, checkpoint_copy: Path, successor: Path, caplog
) -> None:
    after = stored_revision(successor)
    source = CheckpointSource(checkpoint_copy, "given")
    models = checkpoint_folder, CheckpointSource(checkpoint_folder, "given")
    async with harness.running(*models, shadow_source=source) as lifecycle:
        await until(lambda: lifecycle.phase == "ready")
        assert lifecycle.shadow is not None
        assert (list(lifecycle.models), lifecycle.shadow.served.name) == (
            ["tiny", "given"],
            "given",
        )
        replace_folder(checkpoint_copy, successor)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: lifecycle.shadow.model.revision == after)
        DAMAGES["backbone cut off"].apply(checkpoint_copy)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "shadow of given: still" in caplog.text)
        assert (lifecycle.phase, lifecycle.shadow.model.revision) == ("ready", after)


@pytest.mark.parametrize(("name", "reason"), [("none", "tiny"), (None, "size=48")])
async def test_a_shadow_that_cannot_be_compared_ends_the_start(
    harness: Harness,
    checkpoint_folder,
    make_backbone,
    make_network,
    make_config,
    tmp_path,
    name,
    reason,
) -> None:
    settings = TINY_BACKBONE.model_copy(update={"image_size": 48})
    network = make_network(backbone=make_backbone(settings))
    save_checkpoint(tmp_path / "larger", network, make_config(network), "# card\n")
    source = CheckpointSource(tmp_path / "larger", name)
    async with harness.running(checkpoint_folder, shadow_source=source) as lifecycle:
        await until(lambda: lifecycle.phase == "stopping")
    assert reason in str(lifecycle.failure)


async def test_sighup_without_a_new_revision_verifies_the_files_and_replaces_nothing(
    harness: Harness, checkpoint_copy: Path, caplog
) -> None:
    caplog.set_level(logging.INFO, "service")
    loaded: list[CheckpointSource] = []
    threads: list[threading.Thread] = []

    def load(source: CheckpointSource, others: Any) -> Any:
        loaded.append(source)
        threads.append(threading.current_thread())
        return source.load(others)

    async with harness.running(checkpoint_copy, load=load):
        await until(lambda: harness.lifecycle.phase == "ready")
        served = harness.lifecycle.models["tiny"]
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "verified" in caplog.text)
        assert harness.lifecycle.models["tiny"] is served
        assert caplog.text.count("model tiny: runtime") == 1  # that of the served model
    assert loaded == [CheckpointSource(checkpoint_copy)] * 2
    assert all(thread.daemon for thread in threads)  # the process can end before


async def test_sighup_after_the_end_is_handled_as_before_the_start(
    harness: Harness, checkpoint_folder: Path
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with harness.running(checkpoint_folder):
            await until(lambda: harness.lifecycle.phase == "ready")
            assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_slow_and_a_refused_reload_are_logged_and_shown_by_the_metrics(
    harness: Harness, checkpoint_copy: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("service.lifecycle.lifecycle._SLOW_RELOAD_S", 0.01)
    gate, refuses = threading.Event(), False

    def load(source: CheckpointSource, others: Any) -> Any:
        if harness.lifecycle.phase == "ready":
            assert gate.wait(TIMEOUT_S)
        if refuses:
            raise CheckpointError(source.folder, "deliberate")
        return source.load(others)

    async with harness.running(checkpoint_copy, load=load) as lifecycle:
        await until(lambda: lifecycle.phase == "ready")
        assert lifecycle.last_reload_successful
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "model tiny: the reload has taken" in caplog.text)
        assert not lifecycle.last_reload_successful
        gate.set()
        await until(lambda: lifecycle.last_reload_successful)
        refuses = True
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "deliberate" in caplog.text)
        assert not lifecycle.last_reload_successful
        refuses = False
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: lifecycle.last_reload_successful)


@pytest.fixture
def no_automatic_collection() -> Iterator[None]:
    """Disables the garbage collector, which otherwise runs at unpredictable times."""
    gc.disable()
    yield
    gc.enable()


async def test_failed_reloads_leave_no_model_in_memory(
    harness: Harness, checkpoint_copy: Path, caplog, no_automatic_collection
) -> None:
    loaded: list[weakref.ref[Any]] = []

    def load(source: CheckpointSource, others: Any) -> Any:
        checked = source.load(others)
        loaded.append(weakref.ref(checked.model))
        if len(loaded) > 1:
            raise CheckpointError(source.folder, "deliberate")
        return checked

    async with harness.running(checkpoint_copy, load=load):
        await until(lambda: harness.lifecycle.phase == "ready")
        for reloads in range(1, 4):
            signal.raise_signal(signal.SIGHUP)
            await until(lambda expected=reloads: caplog.text.count("deliberate") == expected)
        await until(lambda: [model() is not None for model in loaded] == [True] + [False] * 3)


async def test_a_new_revision_that_fails_its_health_check_is_not_served(
    harness: Harness, checkpoint_copy: Path, successor: Path, caplog
) -> None:
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)

    async def infer_and_record(served: ServedModel, item: InferenceItem) -> Tensor:
        answer = await infer(served, item)
        return answer.roll(1, dims=1) if served.model.revision == after else answer

    harness.infer = infer_and_record

    async with harness.running(checkpoint_copy):
        await until(lambda: harness.lifecycle.phase == "ready")
        replace_folder(checkpoint_copy, successor)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "still serving" in caplog.text)
        assert harness.revision("tiny") == before
        assert harness.lifecycle.phase == "ready"
    assert "the known answer is wrong" in caplog.text


async def test_a_bad_folder_does_not_prevent_the_reload_of_another(
    harness: Harness,
    checkpoint_copy: Path,
    successor: Path,
    make_network,
    make_config,
    caplog,
) -> None:
    network = make_network(seed=3)
    other = checkpoint_copy.with_name("other")
    save_checkpoint(other, network, make_config(network, name="other"), "# card\n")

    async with harness.running(other, checkpoint_copy):
        await until(lambda: harness.lifecycle.phase == "ready")
        before = harness.revision("other")
        shutil.rmtree(other)
        after = stored_revision(successor)
        replace_folder(checkpoint_copy, successor)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: harness.revision("tiny") == after)
        assert harness.revision("other") == before
    assert "model other: " in caplog.text


async def test_a_shutdown_while_loading_does_not_wait_for_the_load(
    harness: Harness, checkpoint_folder: Path
) -> None:
    started, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load(*_: object) -> None:
        loop.call_soon_threadsafe(started.set)
        assert gate.wait(TIMEOUT_S)

    async with harness.running(checkpoint_folder, load=load):
        await started.wait()
    gate.set()
    assert harness.events == ["started", "ended"]
    assert harness.lifecycle.failure is None
