"""The code of a decoder process: decodes images one at a time, with limits on memory and time.

The kernel enforces the limits on time, because no code in Python runs while a library decodes.
"""

import os
import pickle
import resource
import signal
import struct
import time
import traceback
import warnings
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from eulerlora.images.decode import RgbImage
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.settings import Preprocessing
from eulerlora_client.image_formats import FORMATS
from eulerlora_contract.answers import ImageQuality, PredictionWarning
from eulerlora_contract.policy.quality import measure_quality
from eulerlora_contract.problems import UnusableImage
from service.decoding.decode import Declared, decode
from service.decoding.dicom import load_library
from service.settings import DecodingSettings, ImageSettings

LENGTH = struct.Struct("!i")
"""The length that `multiprocessing.connection.Connection` sends before a message."""

READY = "ready"
"""The first message of a process; a `DecodedInput` or `DecodeFailure` follows for every job."""


@dataclass(frozen=True)
class DecodeJob:
    """An image file to decode.

    Attributes:
        preprocessing: Of the model.
        sampling_digest: Of the model, for the content seed.
        with_quality: Also measure the image quality.
    """

    content: bytes
    declared: Declared
    preprocessing: Preprocessing
    sampling_digest: str
    with_quality: bool = False


@dataclass(frozen=True)
class DecodedInput:
    """The network's input of a decoded image, and what is measured on the image.

    Attributes:
        pixels: (3, size, size) float32 in [0, 1].
        content_seed: A seed derived from the decoded image and the model's sampling digest.
        warnings: For the user.
        decode_s: Seconds from bytes to pixels.
        quality: Of the whole image, None if not measured.
        cpu_s: CPU seconds of the whole job.
    """

    pixels: npt.NDArray[np.float32]
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    decode_s: float
    quality: ImageQuality | None = None
    cpu_s: float = 0


@dataclass(frozen=True)
class DecodeFailure:
    """A job without a result.

    Attributes:
        error: A Problem, or a defect with its traceback as a note.
    """

    error: Exception
    cpu_s: float


class OutOfDecodingMemoryError(UnusableImage):
    """Decoding the image needs more memory than the limit."""


def run_worker(connection: Connection, limits: ImageSettings, settings: DecodingSettings) -> None:
    """Reports that the worker is ready, then runs jobs until the connection is closed.

    The kernel kills a worker whose job exceeds its CPU time, with SIGPROF, or twice the time limit,
    with SIGALRM, even if the parent process is gone. The worker ignores the signals that a terminal
    sends to the process group.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # Pillow's warnings about metadata; the result has its own
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    _warm_up(limits)
    _limit_memory(settings.memory_bytes)
    connection.send(READY)
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):  # the service closed the connection or ended
            return
        signal.setitimer(signal.ITIMER_REAL, 2 * settings.timeout_s)
        signal.setitimer(signal.ITIMER_PROF, settings.cpu_budget_s(len(job.content)))
        _send(connection, run_job(job, limits))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def message_of(value: object) -> bytes:
    """Returns a message that `Connection.recv` reads, with its length, to send in one call."""
    content = pickle.dumps(value)
    return LENGTH.pack(len(content)) + content


def _send(connection: Connection, result: DecodedInput | DecodeFailure) -> None:
    """Sends a result. `Connection.send` would wake the service twice, for length and content."""
    message = memoryview(message_of(result))
    while message:
        message = message[os.write(connection.fileno(), message) :]


def run_job(job: DecodeJob, limits: ImageSettings) -> DecodedInput | DecodeFailure:
    """Returns the result of a job, or why it has none."""
    started_at, started_at_cpu_s = time.monotonic(), time.process_time()
    try:
        image = decode(job.content, limits, job.declared, job.preprocessing.input_side)
        return DecodedInput(
            pixels=network_input(image.pixels, job.preprocessing).numpy(),
            content_seed=content_seed(image.pixels, job.sampling_digest),
            warnings=image.warnings,
            decode_s=time.monotonic() - started_at,
            quality=_quality(image) if job.with_quality else None,
            cpu_s=time.process_time() - started_at_cpu_s,
        )
    except Exception as error:
        failure = error
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            failure = OutOfDecodingMemoryError("decoding the image takes too much memory")
        else:
            error.add_note(traceback.format_exc())  # unlike a traceback, a note survives pickling
        return DecodeFailure(failure, time.process_time() - started_at_cpu_s)


def _quality(image: RgbImage) -> ImageQuality:
    """Returns the quality of the image; its size is that before the reduction, in pixels."""
    quality = measure_quality(Image.fromarray(image.pixels.permute(1, 2, 0).numpy()))
    width, height = image.full_size or (quality.width, quality.height)
    return quality.model_copy(update={"width": width, "height": height})


def _warm_up(limits: ImageSettings) -> None:
    """Decodes an image of each format, so that lazy imports do not count as memory of a job."""
    if limits.dicom:
        load_library()
    side = limits.min_side
    for file_format in FORMATS:
        file = BytesIO()
        Image.new("RGB", (side, side)).save(file, file_format)
        run_job(DecodeJob(file.getvalue(), Declared(), Preprocessing(size=side), ""), limits)


def _limit_memory(additional_bytes: int) -> None:
    """Limits private memory; a limit on address space would include CUDA's libraries."""
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    used_bytes = 1024 * int(status["VmData"].split()[0])
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + additional_bytes, hard_limit))
