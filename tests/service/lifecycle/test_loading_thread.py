"""Work in threads that the process does not wait for."""

import asyncio
import threading

import pytest

from service.lifecycle.loading_thread import in_a_thread, still_loading

TIMEOUT_S = 20


def test_the_result_of_the_work_comes_back_from_another_thread() -> None:
    found = asyncio.run(in_a_thread(threading.current_thread))
    assert found is not threading.current_thread()
    assert found.daemon


def test_an_error_of_the_work_comes_back() -> None:
    def work() -> None:
        raise KeyError("made up")

    with pytest.raises(KeyError, match="made up"):
        asyncio.run(in_a_thread(work))


def test_the_loop_runs_on_while_the_thread_works_and_may_end_before_it() -> None:
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert gate.wait(TIMEOUT_S)
        ended.set()

    async def story() -> None:
        task = asyncio.create_task(in_a_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        assert still_loading()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert still_loading()
    gate.set()
    assert ended.wait(TIMEOUT_S)
    for thread in threading.enumerate():
        if thread.name == "loading":
            thread.join(TIMEOUT_S)
    assert not still_loading()
