"""Who decodes next: fair order, short images, and leaving callers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from service.decoding.slots import DecodingSlots
from service.fair_sharing import ClientQuota
from tests.problems import raises_problem
from tests.service.fake_engine import FakeClock

pytestmark = pytest.mark.anyio

LONG_S = 0.1
Charge = Callable[[float], None]


class Decoders:
    """Decoders whose images end when the test says so; `running` are the names of the images."""

    def __init__(self, slots: int, quota_s: float = 1000) -> None:
        self.clock = FakeClock()
        self.slots = DecodingSlots(slots, ClientQuota(quota_s, "s", self.clock), self.clock)
        self.running: dict[str, asyncio.Future[float]] = {}
        self.started: list[str] = []
        self.tasks: dict[str, asyncio.Task[str]] = {}

    async def send(self, name: str, client: str, estimated_s: float = 0.01) -> None:
        """Sends an image."""
        self.tasks[name] = asyncio.create_task(
            self.slots.run(client, estimated_s, self._decode_of(name))
        )
        await settle()

    def _decode_of(self, name: str) -> Callable[[Charge], Coroutine[Any, Any, str]]:
        async def decode(charge: Charge) -> str:
            self.started.append(name)
            self.running[name] = asyncio.Future()
            charge(await self.running[name])
            del self.running[name]
            return name

        return decode

    async def end(self, name: str, cpu_s: float = 0.01) -> None:
        """Ends the decode of an image that has started."""
        self.running[name].set_result(cpu_s)
        await settle()


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_expensive_images_are_paid_for_by_their_client() -> None:
    decoders = Decoders(1)
    for name in ("bomb", "photo"):
        for index in range(12):
            await decoders.send(f"{name} {index}", name)
    while len(decoders.started) < 12:
        name = next(iter(decoders.running))
        await decoders.end(name, 0.05 if name.startswith("bomb") else 0.01)
    assert sum(name.startswith("bomb") for name in decoders.started) <= 4
    for task in decoders.tasks.values():
        task.cancel()


async def test_long_images_leave_a_decoder_to_short_ones() -> None:
    decoders = Decoders(3)
    for index in range(4):
        await decoders.send(f"long {index}", "batch", LONG_S)
    assert decoders.started == ["long 0", "long 1"]
    await decoders.send("short", "batch")
    assert decoders.started == ["long 0", "long 1", "short"]
    await decoders.end("short")
    await decoders.end("long 0")
    assert decoders.started[3:] == ["long 2"]
    for task in decoders.tasks.values():
        task.cancel()


async def test_long_images_of_a_client_are_decoded_while_short_ones_of_another_keep_coming() -> (
    None
):
    decoders = Decoders(2)
    for index in range(4):
        await decoders.send(f"short {index}", "single")
    for index in range(2):
        await decoders.send(f"long {index}", "batch", LONG_S)
    await decoders.end("short 0")
    assert decoders.started == ["short 0", "short 1", "long 0"]  # although a short one runs
    await decoders.end("short 1")
    assert decoders.started[3:] == ["short 2"]
    await decoders.end("long 0")
    assert decoders.started[4:] == ["long 1"]
    for task in decoders.tasks.values():
        task.cancel()


async def test_a_single_decoder_takes_long_images() -> None:
    decoders = Decoders(1)
    await decoders.send("long", "a", LONG_S)
    assert decoders.started == ["long"]
    await decoders.end("long")


async def test_a_client_uses_all_decoders_alone_but_not_while_others_are_active() -> None:
    decoders = Decoders(2)
    for index in range(4):
        await decoders.send(f"batch {index}", "batch")
    assert decoders.started == ["batch 0", "batch 1"]
    await decoders.send("single", "single")
    await decoders.end("batch 0")
    assert decoders.started[2:] == ["single"]
    await decoders.end("single")
    assert decoders.started[3:] == []  # kept free for the next image of the other client
    await decoders.send("next", "single")
    assert decoders.started[3:] == ["next"]
    await decoders.end("next")
    decoders.clock.now_s += 11
    await decoders.send("batch 4", "batch")
    assert decoders.started[4:] == ["batch 2"]
    for task in decoders.tasks.values():
        task.cancel()


async def test_an_image_whose_caller_leaves_is_not_decoded_or_keeps_its_decoder_to_the_end() -> (
    None
):
    decoders = Decoders(1)
    for name in ("running", "waiting", "last"):
        await decoders.send(name, "a")
    decoders.tasks["running"].cancel()
    decoders.tasks["waiting"].cancel()
    await settle()
    assert decoders.started == ["running"]
    assert decoders.tasks["running"].cancelled()
    await decoders.end("running")
    assert decoders.started == ["running", "last"]
    await decoders.end("last")
    assert decoders.slots.wait_s("a", 5) == 0


async def test_a_client_over_its_quota_is_refused_and_frees_its_decoder() -> None:
    decoders = Decoders(1, quota_s=1)
    for name in ("bomb", "second"):
        await decoders.send(name, "a")
    await decoders.send("other", "b")
    await decoders.end("bomb", cpu_s=1.5)
    await decoders.end("other")
    with raises_problem("quota_exceeded"):
        await decoders.tasks["second"]
    assert decoders.started == ["bomb", "other"]
    assert not decoders.slots._running


async def test_an_error_frees_the_decoder_and_is_raised() -> None:
    decoders = Decoders(1)

    async def fail(_: Charge) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await decoders.slots.run("a", 0.01, fail)
    await decoders.send("next", "a")
    assert decoders.started == ["next"]
    await decoders.end("next")


async def test_the_wait_counts_what_fair_sharing_serves_before() -> None:
    decoders = Decoders(2)
    for index in range(10):
        await decoders.send(f"batch {index}", "batch", 1.0)
    assert decoders.slots.wait_s("single", 0.5) == pytest.approx(0.5)
    assert decoders.slots.wait_s("batch", 2.0) == pytest.approx(6)
    for task in decoders.tasks.values():
        task.cancel()
