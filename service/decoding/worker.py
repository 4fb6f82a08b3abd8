"""The code of a decoder process: decodes images one at a time, with limits on memory and time.

The kernel enforces the limits on time, because no code in Python runs while a library decodes.
A message is a header with two lengths, the bytes of one buffer, which are never copied into a
pickle, and a pickle of all other fields.
"""

import os
import pickle
import resource
import signal
import socket
import struct
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.settings import Preprocessing
from eulerlora_client.contract.answers import ImageQuality, PredictionWarning
from eulerlora_client.contract.problems import UnusableImage
from eulerlora_client.policy.quality import measure_quality
from service.decoding.decode import Declared, DecodedImage, decode
from service.decoding.dicom import load_library
from service.settings import DecodingSettings, ImageSettings

HEADER = struct.Struct("=QQ")  # bytes of the buffer, bytes of the pickle
PICKLE_BYTES = 1024  # initial space; most pickles are shorter

IMAGE_BYTES = 2**18  # space that an idle worker allocates for the next file


@dataclass(frozen=True)
class Message:
    """A buffer, which may be empty, and picklable fields."""

    buffer: bytes | memoryview
    fields: object

    def send_some(self, connection: socket.socket) -> memoryview:
        """Sends as much as the socket accepts and returns the rest."""
        fields = pickle.dumps(self.fields)
        parts = (HEADER.pack(len(self.buffer), len(fields)), self.buffer, fields)
        sent = connection.sendmsg(parts)
        if sent == sum(map(len, parts)):
            return memoryview(b"")
        return memoryview(b"".join(parts))[sent:]

    def send(self, connection: socket.socket) -> None:
        """Sends the whole message on a blocking socket."""
        if rest := self.send_some(connection):
            connection.sendall(rest)


class MessageReader:
    """Reads one message in pieces.

    buffer_bytes: the expected length of its buffer, for which space is allocated in advance.
    """

    def __init__(self, buffer_bytes: int = 0) -> None:
        self._bytes = bytearray(HEADER.size + buffer_bytes + PICKLE_BYTES)
        self._filled = 0

    def read(self, connection: socket.socket) -> Message | None:
        """Returns the message, or None if a non-blocking socket has no more data yet.

        The message's buffer is writable. Raises EOFError if the peer has closed the connection,
        and OSError.
        """
        while self._filled < (length := self._known_length()):
            if len(self._bytes) < length:
                self._bytes += bytes(length - len(self._bytes))
            try:
                count = connection.recv_into(memoryview(self._bytes)[self._filled :])
            except BlockingIOError:
                return None
            if count == 0:
                raise EOFError
            self._filled += count
        buffer_length, _ = HEADER.unpack_from(self._bytes)
        view = memoryview(self._bytes)[HEADER.size : length]
        return Message(view[:buffer_length], pickle.loads(view[buffer_length:]))

    def _known_length(self) -> int:
        """Returns the length of the message, or of its header if that is incomplete."""
        if self._filled < HEADER.size:
            return HEADER.size
        buffer_length, fields_length = HEADER.unpack_from(self._bytes)
        return HEADER.size + int(buffer_length) + int(fields_length)


def receive(connection: socket.socket, buffer_bytes: int = 0) -> Message:
    """Returns the next message on a blocking socket. Raises EOFError and OSError."""
    message = MessageReader(buffer_bytes).read(connection)
    assert message is not None
    return message


READY = Message(b"", "ready")


@dataclass(frozen=True)
class DecodeJob:
    """An image file to decode.

    preprocessing: of the model. revision: of the model, for the content seed. with_quality: also
    measure the image quality.
    """

    content: bytes
    declared: Declared
    preprocessing: Preprocessing
    revision: str
    with_quality: bool = False

    @property
    def pixel_bytes(self) -> int:
        """The size of the result's pixels in bytes."""
        return 3 * self.preprocessing.size**2 * np.dtype(np.float32).itemsize

    def to_message(self) -> Message:
        """Returns the message that the service sends."""
        declared = (self.declared.media_type, self.declared.filename)
        fields = (declared, self.preprocessing, self.revision, self.with_quality)
        return Message(self.content, fields)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Returns the job that a worker received."""
        declared, *fields = cast("Any", message.fields)
        return cls(bytes(message.buffer), Declared(*declared), *fields)


@dataclass(frozen=True)
class DecodeResult:
    """The result of a job.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: a seed derived from the decoded image
    and the model's revision. decode_s: seconds from bytes to pixels. cpu_s: CPU seconds of the
    whole job. quality: None if not measured.
    """

    pixels: npt.NDArray[np.float32]
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    decode_s: float
    cpu_s: float
    quality: ImageQuality | None = None

    def to_message(self) -> Message:
        """Returns the message that a worker sends."""
        fields = (self.content_seed, self.warnings, self.decode_s, self.cpu_s, self.quality)
        return Message(self.pixels.data.cast("B"), (self.pixels.shape, *fields))

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Returns the result that the service received."""
        shape, *fields = cast("Any", message.fields)
        return cls(np.frombuffer(message.buffer, np.float32).reshape(shape), *fields)


@dataclass(frozen=True)
class DecodeFailure:
    """A job without a result. error: a Problem, or a defect with its traceback as a note."""

    error: Exception
    cpu_s: float

    def to_message(self) -> Message:
        """Returns the message that a worker sends."""
        return Message(b"", self)


class OutOfDecodingMemoryError(UnusableImage):
    """Decoding the image needs more memory than the limit."""


def run_worker(
    connection: socket.socket, limits: ImageSettings, settings: DecodingSettings
) -> None:
    """Reports that the worker is ready, then runs jobs until the socket is closed.

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
    READY.send(connection)
    while job := _receive_job(connection):
        signal.setitimer(signal.ITIMER_REAL, 2 * settings.timeout_s)
        signal.setitimer(signal.ITIMER_PROF, settings.cpu_budget_s(len(job.content)))
        run_job(job, limits).to_message().send(connection)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_job(job: DecodeJob, limits: ImageSettings) -> DecodeResult | DecodeFailure:
    """Returns the result of a job, or why it has none."""
    started_at_cpu_s = time.process_time()
    try:
        result = _decoded(job, limits)
        return replace(result, cpu_s=time.process_time() - started_at_cpu_s)
    except Exception as error:
        failure = error
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            failure = OutOfDecodingMemoryError("decoding the image takes too much memory")
        else:
            error.add_note(traceback.format_exc())  # unlike a traceback, a note survives pickling
        return DecodeFailure(failure, time.process_time() - started_at_cpu_s)


def result_from_message(message: Message) -> DecodeResult | DecodeFailure:
    """Returns the result or failure in a message from a worker."""
    if isinstance(message.fields, DecodeFailure):
        return message.fields
    return DecodeResult.from_message(message)


def _decoded(job: DecodeJob, limits: ImageSettings) -> DecodeResult:
    """Returns the result of a job, without its CPU time."""
    started_at = time.monotonic()
    image = decode(job.content, limits, job.declared, job.preprocessing.input_side)
    return DecodeResult(
        pixels=network_input(image.pixels, job.preprocessing).numpy(),
        content_seed=content_seed(image.pixels, job.revision),
        warnings=image.warnings,
        decode_s=time.monotonic() - started_at,
        cpu_s=0,
        quality=_quality(image) if job.with_quality else None,
    )


def _quality(image: DecodedImage) -> ImageQuality:
    """Returns the quality of the image; its size is that before the reduction, in pixels."""
    quality = measure_quality(Image.fromarray(image.pixels.permute(1, 2, 0).numpy()))
    return quality.model_copy(update={"width": image.width, "height": image.height})


def _receive_job(connection: socket.socket) -> DecodeJob | None:
    try:
        return DecodeJob.from_message(receive(connection, IMAGE_BYTES))
    except (EOFError, ConnectionResetError):  # the parent closed the socket or ended
        return None


def _warm_up(limits: ImageSettings) -> None:
    """Decodes an image of each format, so that lazy imports do not count as memory of a job."""
    if limits.dicom:
        load_library()
    side = limits.min_side
    for file_format in ("JPEG", "PNG", "WEBP"):
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
