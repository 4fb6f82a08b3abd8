"""The code of a decoder process: decodes images one at a time, and can do nothing else.

The kernel enforces the limits on time, because no code in Python runs while a library decodes, and
what the process may do (`sandbox`), because a damaged image may make a library run foreign code.

`serve_forks` is the program, and `run_job` what it runs in each decoder: from a job to the input of
the network, or to a failure for every error. It reads nothing but the job.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import torch
from PIL import ExifTags, Image, ImageCms

from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.settings import Preprocessing
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.problems import UnsupportedMedia, UnusableImage
from eulerlora_contract.quality import has_frame, measure_quality, working_luma
from service.decoding import sandbox
from service.decoding.decode import decode
from service.decoding.details import Detail
from service.decoding.fork_server import MAX_REQUEST_BYTES, NUMBER
from service.decoding.formats import Declared
from service.decoding.messages import (
    HEADER,
    DecodedInput,
    DecodeJob,
    Failure,
    message,
)
from service.decoding.ruler import has_ruler
from service.settings import DecodingSettings, ImageSettings

__all__ = ["run_job", "serve_forks"]

_CONNECTION = sandbox.LAST_DESCRIPTOR
"""The descriptor of the socket to the service."""

_FRAME = PredictionWarning(
    code=WarningCode.FRAME,
    message="a frame surrounds the picture, which alone can make it unfamiliar: crop the "
    "frame and send the picture again",
)
_RULER = PredictionWarning(
    code=WarningCode.RULER,
    message="the picture shows a ruler, which alone can make it unfamiliar: crop it, or take the "
    "picture without it, and send it again",
)


def serve_forks(control: socket.socket) -> None:
    """Forks a decoder for every request, until the service closes `control`.

    A request is a JSON object of the settings, with two descriptors: the decoder's connection, and
    a socket that gets its process id and later its exit code, as a `NUMBER`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # Pillow's warnings about metadata; the result has its own
    torch.set_num_threads(1)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    sources: list[socket.socket | int] = [control, ended]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if ended in readable:
            os.read(ended, MAX_REQUEST_BYTES)
            _report_ends(children)
        if control in readable:
            request, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
            if not request:
                return
            connection, exit_status = descriptors
            fields = json.loads(request)
            limits = ImageSettings(**fields["images"])
            _warm_up(limits)
            try:
                pid = os.fork()
            except OSError:  # no memory or processes are left; the service tries again
                os.close(exit_status)
            else:
                if not pid:
                    _run_worker(connection, limits, DecodingSettings(**fields["decoding"]))
                children[pid] = exit_status
                with suppress(OSError):  # the service has closed it
                    os.write(exit_status, NUMBER.pack(pid))
            os.close(connection)


def _report_ends(children: dict[int, int]) -> None:
    """Writes the exit codes of the ended children, and forgets them."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        exit_status = children.pop(pid)
        with suppress(OSError):  # the service has closed it
            os.write(exit_status, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(exit_status)


def _run_worker(connection: int, limits: ImageSettings, settings: DecodingSettings) -> NoReturn:
    """Enters the sandbox and reports it, then runs jobs until the connection is closed.

    The kernel kills a worker whose job exceeds its CPU time, with SIGPROF, or twice the time limit,
    with SIGALRM, even if the parent process is gone.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    try:
        with suppress(OSError):  # it then ends when the service closes the connection
            sandbox.end_with_parent(signal.SIGKILL)
        _limit_memory(settings.memory_bytes)
        _keep_only(connection)
        stream = socket.socket(fileno=_CONNECTION)
        _send(message(json.dumps(asdict(sandbox.enter_sandbox()))))
        while job := _received_job(stream):
            signal.setitimer(signal.ITIMER_REAL, 2 * settings.timeout_s)
            signal.setitimer(signal.ITIMER_PROF, settings.cpu_budget_s(len(job.content)))
            _send(run_job(job, limits).message())
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def _keep_only(connection: int) -> None:
    """Moves the connection to its descriptor, and closes all others but the standard streams.

    Those lead nowhere: what a library prints, or foreign code, is not a line of the log.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(_CONNECTION):
        os.dup2(null, stream)
    os.dup2(connection, _CONNECTION)
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) > _CONNECTION:
            with suppress(OSError):  # that of the folder is closed already
                os.close(int(path.name))


def _received_job(stream: socket.socket) -> DecodeJob | None:
    """The next job; None if the service closed the connection or ended."""
    header = stream.recv(HEADER.size, socket.MSG_WAITALL)
    if len(header) < HEADER.size:
        return None
    fields_bytes, content_bytes = HEADER.unpack(header)
    fields = stream.recv(fields_bytes, socket.MSG_WAITALL)
    content = stream.recv(content_bytes, socket.MSG_WAITALL)
    return DecodeJob.of_message(fields, content) if len(content) == content_bytes else None


def _send(content: bytes) -> None:
    unsent = memoryview(content)
    while unsent:
        unsent = unsent[os.write(_CONNECTION, unsent) :]


def run_job(job: DecodeJob, limits: ImageSettings) -> DecodedInput | Failure:
    """The result of a job, or why it has none."""
    try:
        image = decode(job.content, limits, job.declared, job.preprocessing.input_side)
        warnings, quality = image.warnings, None
        if job.with_quality:
            bands = [Image.fromarray(band) for band in image.pixels.numpy()]
            gray = Image.merge("RGB", bands).convert("L")
            luma = working_luma(gray)  # once for both
            width, height = image.full_size or gray.size
            quality = measure_quality(luma)
            quality = quality.model_copy(update={"width": width, "height": height})
            warnings += (_FRAME,) if has_frame(luma) else ()
            warnings += (_RULER,) if has_ruler(gray) else ()
        return DecodedInput(
            pixels=network_input(image.pixels, job.preprocessing).numpy(),
            content_seed=content_seed(image.pixels, job.sampling_digest),
            warnings=warnings,
            quality=quality,
        )
    except UnsupportedMedia as problem:
        return Failure(kind="unsupported_media", detail=Detail.of(problem.detail))
    except UnusableImage as problem:
        return Failure(kind="unusable_image", detail=Detail.of(problem.detail))
    except Exception as error:
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            detail = Detail.of("decoding the image takes too much memory")
            return Failure(kind="out_of_memory", detail=detail)
        return Failure.of_defect(error)


@cache
def _warm_up(limits: ImageSettings) -> None:
    """Decodes images of each kind, because a decoder can import no module and read no file.

    What is imported here does not count as memory of a job.
    """
    Image.init()  # imports the plugins of Pillow
    for container in limits.containers:
        container.load_library()
    side = limits.min_side
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    squash = Preprocessing(size=side, canvas=(2 * side, side))
    crop = Preprocessing(
        size=side,
        resize="crop",
        shorter_side=2 * side,
        interpolation="bicubic-antialias",
        colour_constancy="shades-of-gray",
    )
    for mode, file_format, options in (
        ("RGB", "JPEG", {"icc_profile": profile, "exif": turned}),
        ("CMYK", "JPEG", {}),
        ("L", "JPEG", {"progressive": True}),
        ("RGBA", "PNG", {"icc_profile": profile, "exif": turned}),
        ("P", "PNG", {"transparency": 3}),
        ("I;16", "PNG", {}),
        ("RGB", "WEBP", {"icc_profile": profile, "exif": turned}),
        ("RGBA", "WEBP", {}),
    ):
        file = BytesIO()
        Image.new(mode, (side, side)).save(file, file_format, **options)
        for preprocessing in (squash, crop):
            for content in (file.getvalue(), file.getvalue()[:-side]):  # as sent, and truncated
                job = DecodeJob(content, Declared("image/png", "a.jpg"), preprocessing, "", True)
                run_job(job, limits).message()


def _limit_memory(additional_bytes: int) -> None:
    """Limits the memory that this process may have beside what it has now.

    The limit on address space covers what is shared, too; that on data covers pages of libraries
    that become writable.
    """
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = 1024 * int(status[field].split()[0]) + additional_bytes
        _, hard_limit = resource.getrlimit(limit)
        if hard_limit != resource.RLIM_INFINITY:
            most = min(most, hard_limit)
        resource.setrlimit(limit, (most, most))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as service:
        serve_forks(service)
