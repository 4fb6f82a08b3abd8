"""How many cores a pass has, alone and beside others."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from service.inference.cores import Cores


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_pass_alone_has_all_cores_and_each_of_several_its_part() -> None:
    cores = Cores(5)
    with ExitStack() as passes:
        assert [passes.enter_context(cores.share()) for _ in range(6)] == [5, 2, 1, 1, 1, 1]
    with cores.share() as own:
        assert own == 5


def test_a_pass_that_fails_gives_its_cores_back() -> None:
    cores = Cores(2)
    with pytest.raises(ZeroDivisionError), cores.share():
        raise ZeroDivisionError
    with cores.share() as own:
        assert own == 2


def test_torch_uses_those_cores_in_the_thread_of_the_pass_alone() -> None:
    torch.set_num_threads(2)
    cores, found = Cores(), []

    def one_of_two() -> None:
        with cores.share():
            found.append(torch.get_num_threads())

    with cores.share():
        thread = threading.Thread(target=one_of_two)
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 2
    assert found == [1]
