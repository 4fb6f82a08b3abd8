"""What a decoding process does: one image after another, with a bound on memory and on time."""

import os
import resource
import signal
import socket
import time
import traceback
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from eulerlora.preprocess import RgbImage, resize
from eulerlora.seeds import content_seed
from eulerlora_client.contract.triage import ImageQuality
from eulerlora_client.policy.quality import measure_quality
from service.decoding.decode import Declared, decode
from service.decoding.messages import Message, received
from service.settings import ImageLimits

READY = Message(b"", "ready")
USUAL_BYTES = 2**18  # of an image; room for it is made while none is there


@dataclass(frozen=True)
class Job:
    """An image to decode for a model: its input's side in pixels, and its revision.

    measured: whether its quality is wanted, too.
    """

    content: bytes
    declared: Declared
    size: int
    revision: str
    measured: bool = False

    @property
    def pixel_bytes(self) -> int:
        """Of what comes of it."""
        return 3 * self.size * self.size * np.dtype(np.float32).itemsize

    def message(self) -> Message:
        """As it is sent to a worker."""
        declared = (self.declared.media_type, self.declared.filename)
        return Message(self.content, (declared, self.size, self.revision, self.measured))

    @classmethod
    def of(cls, message: Message) -> Self:
        """As a worker gets it."""
        declared, *rest = cast("Any", message.rest)
        return cls(bytes(message.raw), Declared(*declared), *rest)


@dataclass(frozen=True)
class Done:
    """What came of a job.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: of the whole picture and the model's
    revision. decode_s: seconds from bytes to pixels. quality: of the whole picture, where wanted.
    """

    pixels: npt.NDArray[np.float32]
    content_seed: int
    warnings: tuple[str, ...]
    decode_s: float
    quality: ImageQuality | None = None

    def message(self) -> Message:
        """As a worker sends it."""
        rest = (self.content_seed, self.warnings, self.decode_s, self.quality)
        return Message(self.pixels.data.cast("B"), (self.pixels.shape, *rest))

    @classmethod
    def of(cls, message: Message) -> Self:
        """As it is received."""
        shape, *rest = cast("Any", message.rest)
        return cls(np.frombuffer(message.raw, np.float32).reshape(shape), *rest)


def work(connection: socket.socket, limits: ImageLimits, memory_bytes: int, last_s: float) -> None:
    """The life of a worker: says that it is ready, then answers jobs until the socket is closed.

    An answer is `Done` or an exception. memory_bytes: beyond what the process uses when ready.
    last_s: seconds after which the kernel ends a worker that still decodes, its parent alive or
    not. Signals to the terminal's process group are the parent's to obey.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # Pillow's, of broken metadata: the client is told by `Done`
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    _warm_up(limits)
    _limit_memory(memory_bytes)
    READY.send(connection)
    while job := _next(connection):
        signal.setitimer(signal.ITIMER_REAL, last_s)
        message_of(perform(job, limits)).send(connection)
        signal.setitimer(signal.ITIMER_REAL, 0)


def message_of(answer: Done | Exception) -> Message:
    """An answer as a worker sends it."""
    return answer.message() if isinstance(answer, Done) else Message(b"", answer)


def answer_of(message: Message) -> Done | Exception:
    """An answer as it is received."""
    return message.rest if isinstance(message.rest, Exception) else Done.of(message)


class OutOfDecodingMemoryError(Exception):
    """Decoding the image takes more memory than one may."""


def perform(job: Job, limits: ImageLimits) -> Done | Exception:
    """The answer to a job; a defect carries its traceback as a note, which survives pickling."""
    started = time.monotonic()
    try:
        picture = decode(job.content, limits, job.declared)
        return Done(
            resize(picture.pixels, job.size).numpy(),
            content_seed(picture.pixels, job.revision),
            picture.warnings,
            time.monotonic() - started,
            _quality(picture) if job.measured else None,
        )
    except Exception as error:
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            return OutOfDecodingMemoryError("decoding the image takes too much memory")
        error.add_note(traceback.format_exc())
        return error


def _quality(picture: RgbImage) -> ImageQuality:
    return measure_quality(Image.fromarray(picture.pixels.permute(1, 2, 0).numpy()))


def _next(connection: socket.socket) -> Job | None:
    try:
        return Job.of(received(connection, USUAL_BYTES))
    except (EOFError, ConnectionResetError):  # the parent has closed it, or is gone
        return None


def _warm_up(limits: ImageLimits) -> None:
    """What is loaded at first use is part of what the worker uses when ready."""
    side = limits.min_side
    for file_format in ("JPEG", "PNG", "WEBP"):
        file = BytesIO()
        Image.new("RGB", (side, side)).save(file, file_format)
        perform(Job(file.getvalue(), Declared(), side, ""), limits)


def _limit_memory(more_bytes: int) -> None:
    """Allows so much more private memory; address space would also count CUDA's libraries."""
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    in_use = 1024 * int(status["VmData"].split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + more_bytes, hard))
