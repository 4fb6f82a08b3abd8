"""Settings of the service, read from environment variables."""

import os
import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from eulerlora.errors import SettingsError
from eulerlora_client.settings import PositiveInt, Settings, first_error

PREFIX = "EULERLORA_SERVE_"
NESTED = "__"
STOP_MARGIN_S = 5.0
"""Time within `grace_s` for the last forward pass, and for the process to end."""

HOST_NAME = r"[A-Za-z0-9._:-]+"  # a name, an IPv4 address, or an IPv6 address without brackets
HostNames = Annotated[str, Field(pattern=rf"^({HOST_NAME}(,{HOST_NAME})*)?$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
OverloadStatus = Annotated[
    Literal[429, 503], BeforeValidator(lambda text: {"429": 429, "503": 503}.get(text, text))
]


class ImageSettings(Settings):
    """Limits on the dimensions of an image, checked from its header.

    min_side, max_side: of width and height, in pixels. max_pixels: of width times height.
    max_jpeg_pixels: the same for a JPEG, which is decoded to `max_pixels` or less.
    max_request_pixels: of all images of a request. dicom: also accept DICOM files.
    """

    min_side: PositiveInt = 32
    max_side: PositiveInt = 8192
    max_pixels: PositiveInt = 24_000_000
    max_jpeg_pixels: PositiveInt = 64_000_000
    max_request_pixels: PositiveInt = 512_000_000
    dicom: bool = False


class BodySettings(Settings):
    """Limits on request bodies.

    max_bytes: of one body. max_batch_bytes, max_files: of a body with many images.
    upload_timeout_s: from the headers to the last byte. stall_timeout_s: between two pieces of a
    body. max_bytes_in_flight: received bytes of the bodies of all requests without a response; a
    client may use as many as it leaves free.
    """

    max_bytes: PositiveInt = 20 * 1024 * 1024
    max_batch_bytes: PositiveInt = 128 * 1024 * 1024
    upload_timeout_s: Seconds = 30
    stall_timeout_s: Seconds = 5
    max_bytes_in_flight: PositiveInt = 512 * 1024 * 1024
    max_files: PositiveInt = 32


class ConnectionSettings(Settings):
    """Limits on connections.

    header_timeout_s: from the opening of a connection, or the first byte of its next request, to
    the end of the headers. idle_timeout_s: from a response to the next request; should be longer
    than that of a proxy in front, which otherwise sends requests on connections that are being
    closed. max_connections: above this number, a new connection closes the one that has been idle
    longest since its last response; if there is none, only probes get a response.
    spare_files: open files that are reserved for other purposes than connections; if connections
    use all others, a new one closes the one that has been idle longest.
    """

    header_timeout_s: Seconds = 10
    idle_timeout_s: Seconds = 75
    max_connections: PositiveInt = 512
    spare_files: PositiveInt = 128

    def most_connections(self) -> int:
        """Returns the maximum number of open connections."""
        return max(1, open_files() - self.spare_files)


class DecodingSettings(Settings):
    """Limits on image decoding.

    workers: the number of decoder processes. timeout_s: per image. cpu_s, cpu_s_per_megabyte: CPU
    time of an image and, in addition, of a megabyte (1e6 bytes) of its file. memory_bytes: of one
    worker, in addition to its use when idle. client_s_per_minute: CPU seconds of decoding for the
    images of one client.
    """

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    timeout_s: Seconds = 10
    cpu_s: Seconds = 2
    cpu_s_per_megabyte: Seconds = 0.2
    memory_bytes: PositiveInt = 1024**3
    client_s_per_minute: Seconds = 60

    def cpu_budget_s(self, file_bytes: int) -> float:
        """Returns the CPU seconds that decoding a file may take."""
        return self.cpu_s + self.cpu_s_per_megabyte * file_bytes / 1e6


class LifeSettings(Settings):
    """Health checks and shutdown, in seconds.

    probe_interval_s: between two health checks. probe_timeout_s: of a health check. drain_s:
    requests are still accepted for this time after a signal, so that load balancers can react.
    grace_s: from the signal to the end of the process at the latest.
    """

    probe_interval_s: Seconds = 30
    probe_timeout_s: Seconds = 30
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 0
    grace_s: Seconds = 60


class ServiceSettings(BaseSettings):
    """All settings of the service.

    max_batch_rows: rows (image, trajectory) in one forward pass; a single item may exceed it.
    max_pass_ms: estimated time of a forward pass of several items, for which others wait.
    max_batch_s: a longer forward pass means a lost device. max_waiting_rows: rows of requests that
    are queued or being decoded; a client may use as many as it leaves free. deadline_s: from the
    moment when the body is complete; a request that is estimated to end later is refused, and one
    that has not started by then does not run.
    overload_status: HTTP status of the problem `overloaded`; some proxies retry only one of the
    two. fewer_samples: under load, run requests with fewer samples and report it in the response.
    allowed_hosts: the host names of the service, separated by commas; requests that name another
    one are refused. Empty: `service.auth.access.allowed_hosts` decides.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )

    images: ImageSettings = ImageSettings()
    bodies: BodySettings = BodySettings()
    connections: ConnectionSettings = ConnectionSettings()
    decoding: DecodingSettings = DecodingSettings()
    life: LifeSettings = LifeSettings()
    max_batch_rows: PositiveInt = 128
    max_batch_s: Seconds = 60
    max_pass_ms: PositiveInt = 50
    max_waiting_rows: PositiveInt = 3072
    deadline_s: Seconds = 10
    overload_status: OverloadStatus = 503
    fewer_samples: bool = False
    allowed_hosts: HostNames = ""


def settings_of_environment() -> ServiceSettings:
    """Returns the settings in the environment.

    Examples: `EULERLORA_SERVE_DEADLINE_S=5`, and `EULERLORA_SERVE_BODIES__MAX_BYTES=1000000` for a
    setting of a group. Raises SettingsError for an unknown name and for a value out of range.
    """
    known = set(variables(ServiceSettings))
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsError(f"{name}: unknown setting; docs/how-to/serve.md lists all settings")
    try:
        return ServiceSettings()
    except ValidationError as error:
        raise SettingsError(f"{PREFIX}*: {first_error(error)}") from error


def check_consistency(settings: ServiceSettings) -> None:
    """Raises SettingsError, with both names and values, for settings that cannot work together."""
    images, bodies, life = settings.images, settings.bodies, settings.life
    if images.dicom and find_spec("pydicom") is None:
        raise SettingsError("images.dicom: expected pydicom; run pip install eulerlora[dicom]")
    drained_s = life.drain_s + bodies.upload_timeout_s + settings.deadline_s + STOP_MARGIN_S
    at_most = (
        ("images.min_side", images.min_side, "images.max_side", images.max_side),
        ("the square of images.min_side", images.min_side**2, "images.max_pixels",
         images.max_pixels),
        ("images.max_pixels", images.max_pixels, "images.max_request_pixels",
         images.max_request_pixels),
        ("images.max_jpeg_pixels", images.max_jpeg_pixels, "images.max_request_pixels",
         images.max_request_pixels),
        ("decoding.cpu_s", settings.decoding.cpu_s, "decoding.client_s_per_minute",
         settings.decoding.client_s_per_minute),
        ("connections.spare_files + 1", settings.connections.spare_files + 1,
         "a limit on open files (ulimit -n)", open_files()),
        ("bodies.max_bytes", bodies.max_bytes, "bodies.max_bytes_in_flight",
         bodies.max_bytes_in_flight),
        ("bodies.max_batch_bytes", bodies.max_batch_bytes, "bodies.max_bytes_in_flight",
         bodies.max_bytes_in_flight),
        (f"life.drain_s + bodies.upload_timeout_s + deadline_s + {STOP_MARGIN_S:g}", drained_s,
         "life.grace_s", life.grace_s),
    )  # fmt: skip
    for low_name, low, high_name, high in at_most:
        if low > high:
            raise SettingsError(
                f"expected {high_name} of at least {low_name}={low:.15g}, got {high:.15g}"
            )


def open_files() -> int:
    """Returns the maximum number of open files of this process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def variables(kind: type[BaseModel], prefix: str = PREFIX) -> Iterator[str]:
    """Yields the environment variables of all settings in a class, including its groups."""
    for name, field in kind.model_fields.items():
        variable = prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, variable + NESTED)
        else:
            yield variable
