"""Worker processes and signals."""

import os
import signal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from training.data.loading import load


class Numbers(Dataset[Tensor]):
    """Eight numbers; its worker process gets `received` from another process before the third."""

    def __init__(self, received: signal.Signals) -> None:
        self.received = received

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            if os.fork() == 0:
                os.kill(os.getppid(), self.received)
                os._exit(0)
            os.wait()
        return torch.tensor(index)


def test_a_signal_from_another_process_ends_no_worker() -> None:
    for received in (signal.SIGTERM, signal.SIGINT):
        assert torch.cat(list(load(Numbers(received), 1, batch_size=4))).tolist() == [*range(8)]


def test_the_process_gets_its_signals_afterwards() -> None:
    list(load(Numbers(signal.SIGTERM), 1, batch_size=4))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}
