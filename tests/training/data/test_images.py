"""Images in folders and archives; decoding; unusable images.

Worker processes and signals.
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eulerlora_contract.errors import DataError
from tests.icc_profiles import DISPLAY_P3, in_srgb, rgb_profile
from training.data.cache import decoded_images
from training.data.images import LabelledImage, load


def test_paths_that_are_no_folder_or_archive_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("not an archive")
    for name, reason in (("absent", "no such"), ("text.tar", "readable archive")):
        with pytest.raises(DataError, match=reason):
            decoded_images(tmp_path / name)


def test_an_undecodable_image_is_refused_with_its_name() -> None:
    with pytest.raises(DataError, match=r"train/red/07\.png"):
        LabelledImage("train/red/07.png", b"\x89PNG\r\n\x1a\nbroken", 0).pixels()


def test_a_colour_profile_that_is_ignored_is_reported_once_and_others_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = Image.new("RGB", (8, 6), (200, 100, 50))
    image.save(tmp_path / "a.png", icc_profile=b"broken")
    image.save(tmp_path / "b.png", icc_profile=rgb_profile(DISPLAY_P3))
    image.save(tmp_path / "c.png")
    decoded = decoded_images(tmp_path).sources
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert lines == ["warning: a.png: the colour profile is ignored: it is damaged"]
    assert torch.equal(decoded["a.png"], decoded["c.png"])
    expected = in_srgb(np.array([200, 100, 50], np.uint8), DISPLAY_P3)
    assert np.abs(decoded["b.png"][:, 0, 0].numpy() - expected).max() <= 1


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


def test_a_signal_from_another_process_ends_no_worker_and_this_one_gets_its_signals_again() -> None:
    for received in (signal.SIGTERM, signal.SIGINT):
        assert torch.cat(list(load(Numbers(received), 1, batch_size=4))).tolist() == [*range(8)]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}
