"""Settings of the service, read from environment variables."""

import os
import re
import reprlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from eulerlora.cpu import available_cpus
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.image_formats import SizeLimits
from eulerlora_contract.queries import MAX_BATCH_BYTES, MAX_BATCH_FILES
from eulerlora_contract.settings import PositiveInt, Settings, first_error
from service.containers import ImageContainer, check_library, container_names, image_containers
from service.options import options_with_variable

VARIABLE_PREFIX = "EULERLORA_SERVE_"
NESTED = "__"
STOP_MARGIN_S = 5.0
"""Time within `grace_s` for the last forward pass, and for the process to end."""

_SERVICE_LINK = re.compile(
    r".*_SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|.*_PORT=(tcp|udp|sctp)://.*"
    r"|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*",
    re.DOTALL,
)
"""A variable NAME=VALUE that Kubernetes sets in every pod for a service of its namespace; for one
called `eulerlora-serve-svc`, the name begins as that of a setting.
"""
_MIN_DECODERS, _MAX_DECODERS = 2, 16
_HOST_NAME = r"[A-Za-z0-9._:-]+"  # a name, an IPv4 address, or an IPv6 address without brackets


def _host_names(text: str) -> str:
    """Refuses a port and a final dot, which are left out of a Host before it is compared."""
    for name in text.split(","):
        try:
            stays = not name.endswith(".") and (":" not in name or IPv6Address(name))
        except ValueError:
            stays = False
        if not stays:
            raise ValueError(f"expected no port and no final dot, got {reprlib.repr(name)}")
    return text


_HostNames = Annotated[
    str, Field(pattern=rf"^({_HOST_NAME}(,{_HOST_NAME})*)?$"), AfterValidator(_host_names)
]


def _networks(text: str) -> str:
    try:
        for network in text.split(",") if text else ():
            ip_network(network)
    except ValueError as error:
        raise ValueError(f"expected addresses or networks, got {reprlib.repr(text)}") from error
    return text


_Networks = Annotated[str, AfterValidator(_networks)]
_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_OverloadStatus = Annotated[
    Literal[429, 503], BeforeValidator(lambda text: {"429": 429, "503": 503}.get(text, text))
]


class ImageSettings(SizeLimits):
    """Limits on the images of a request, checked from their headers."""

    max_request_pixels: PositiveInt = 512_000_000
    """Of all images of a request together."""
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool]
    """By the name of an installed image container: also accept it."""

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        for name in values:
            if name not in cls.model_fields and name not in container_names():
                raise ValueError(f"unknown key {reprlib.repr(name)}")
        return values

    @property
    def containers(self) -> list[ImageContainer]:
        """The containers that are accepted."""
        accepted = self.__pydantic_extra__
        return [one for name, one in image_containers().items() if accepted.get(name)]


class BodySettings(Settings):
    """Limits on request bodies."""

    max_bytes: PositiveInt = 20 * 1024 * 1024
    """Maximum size of one upload."""
    max_batch_bytes: PositiveInt = MAX_BATCH_BYTES
    """Maximum size of one body with many images."""
    upload_timeout_s: _Seconds = 30
    """From the headers to the last byte."""
    stall_timeout_s: _Seconds = 5
    """Between two pieces of a body."""
    max_bytes_in_flight: PositiveInt = 512 * 1024 * 1024
    """Received bytes of all unanswered requests; a client may use as many as it leaves free."""
    max_files: PositiveInt = MAX_BATCH_FILES
    """Images in a body with many images."""


class ConnectionSettings(Settings):
    """Limits on connections."""

    header_timeout_s: _Seconds = 10
    """From the opening of a connection, or the first byte of its next request, to the end of the
    headers.
    """
    idle_timeout_s: _Seconds = 75
    """From a response to the next request. Must be longer than the idle timeout of a proxy in front
    (often 60), which otherwise sends requests on connections that are being closed.
    """
    max_connections: PositiveInt = 512
    """Open connections. Above that, addresses with more than an equal share lose the oldest ones
    without complete headers, then the ones idle longest, and only their probes are answered. A /64
    network of IPv6 counts as one address.
    """
    spare_files: PositiveInt = 128
    """File descriptors reserved for other purposes than connections."""

    def connections_within_file_limit(self) -> int:
        """The connections that the limit on open files leaves; at least 1."""
        return max(1, _open_files() - self.spare_files)


class DecodingSettings(Settings):
    """Limits on image decoding."""

    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Decoder processes, and so images decoded in parallel; 0 for half of the CPUs, but 2 to 16.
    With several, images of more than 50 ms leave one to others.
    """
    timeout_s: _Seconds = 10
    """For one image; then the decoder is killed and the answer is 503."""
    cpu_s: _Seconds = 2
    """CPU time for one image; then the decoder is killed and the image refused."""
    cpu_s_per_megabyte: _Seconds = 0.2
    """Additional CPU time for each megabyte (1e6 bytes) of the file."""
    memory_bytes: PositiveInt = 1024**3
    """Memory of a decoder above its idle use."""
    client_s_per_minute: _Seconds = 60
    """CPU time for the images of one client; then 429."""

    @property
    def decoders(self) -> int:
        """Decoder processes that decode at the same time."""
        return self.workers or min(max(_MIN_DECODERS, available_cpus() // 2), _MAX_DECODERS)

    def cpu_budget_s(self, file_bytes: int) -> float:
        return self.cpu_s + self.cpu_s_per_megabyte * file_bytes / 1e6


class LifeSettings(Settings):
    """Health checks and shutdown."""

    probe_interval_s: _Seconds = 30
    """Between two health checks."""
    probe_timeout_s: _Seconds = 30
    """For the answer to a health check; a later one is a warning in the log. Three times without
    any answer end the process, except during a reload.
    """
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 0
    """Requests are still accepted for this time after SIGTERM (`--drain-s`)."""
    grace_s: _Seconds = 60
    """From SIGTERM to the end of the process; at least `LIFE__DRAIN_S` +
    `BODIES__UPLOAD_TIMEOUT_S` + `DEADLINE_S` + 5.
    """


class ServiceSettings(BaseSettings):
    """All settings of the service."""

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE_PREFIX,
        env_nested_delimiter=NESTED,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    images: ImageSettings = ImageSettings()
    bodies: BodySettings = BodySettings()
    connections: ConnectionSettings = ConnectionSettings()
    decoding: DecodingSettings = DecodingSettings()
    life: LifeSettings = LifeSettings()
    max_batch_rows: PositiveInt = 128
    """Rows (image, trajectory) in one forward pass; a single image may exceed it."""
    max_batch_s: _Seconds = 60
    """For one forward pass; a longer one counts as a device failure and ends the process."""
    max_pass_ms: PositiveInt = 50
    """Estimated time of a forward pass of several images, for which other clients wait; eight times
    as long while one client is active alone.
    """
    max_waiting_rows: PositiveInt = 3072
    """Rows that are queued or being decoded; a client may use as many as it leaves free."""
    deadline_s: _Seconds = 10
    """From the moment when the body is complete. If others wait, a request whose inference is
    estimated to end after more than 80% of it is refused. One that has not started by the deadline
    never runs.
    """
    overload_status: _OverloadStatus = 503
    """Status of `overloaded`: 503, or 429 for proxies that slow down only after that."""
    allowed_hosts: _HostNames = ""
    """Host names of the service, separated by commas; requests that name another one are refused.
    Empty: any name with keys, otherwise `localhost`, `127.0.0.1`, `::1` and that of `--host`.
    """
    trusted_proxies: _Networks = ""
    """Addresses or networks of proxies, separated by commas, whose `X-Forwarded-For` names the
    client. Empty: nobody's does.
    """
    page_requests_per_minute: PositiveInt = 300
    """Requests of one client for the files of the page (about 10) and of `/docs`; then 429."""


@dataclass(frozen=True)
class Variable:
    """An environment variable of the service, its default value and its meaning."""

    name: str
    default: str
    text: str


def variables() -> Iterator[Variable]:
    """The variables of settings, of installed image containers, and of options of extensions."""
    yield from _variables(ServiceSettings)
    for name in container_names():
        variable = f"{VARIABLE_PREFIX}IMAGES{NESTED}{name.upper()}"
        yield Variable(variable, "false", f"Also accept files of the format {name}.")
    for option in options_with_variable():
        yield Variable(str(option.envvar), str(option.default), option.help or "")


def settings_of_environment() -> ServiceSettings:
    """Reads the settings in the environment.

    Examples: `EULERLORA_SERVE_DEADLINE_S=5`, and `EULERLORA_SERVE_BODIES__MAX_BYTES=1000000` for a
    setting of a group.

    Raises:
        SettingsError: For an unknown name, except of a service link, and for a value out of range.
    """
    known = {one.name for one in variables()}
    for name, value in os.environ.items():
        is_unknown = name.upper().startswith(VARIABLE_PREFIX) and name.upper() not in known
        if is_unknown and not _SERVICE_LINK.fullmatch(f"{name}={value}"):
            raise SettingsError(f"{name}: unknown setting; eulerlora serve --settings lists all")
    try:
        return ServiceSettings()
    except ValidationError as error:
        raise SettingsError(f"{VARIABLE_PREFIX}*: {first_error(error)}") from error


def check_consistency(settings: ServiceSettings) -> None:
    """Checks settings that must fit together.

    Raises:
        SettingsError: With both names and values, if two do not.
    """
    images, bodies, life = settings.images, settings.bodies, settings.life
    for name, is_accepted in images.__pydantic_extra__.items():
        if is_accepted:
            check_library(name)
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
         "a limit on open files (ulimit -n)", _open_files()),
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


def _open_files() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def _variables(kind: type[BaseModel], prefix: str = VARIABLE_PREFIX) -> Iterator[Variable]:
    """The variables of all settings in a class, including its groups."""
    for name, field in kind.model_fields.items():
        variable = prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variables(field.annotation, variable + NESTED)
        else:
            text = " ".join((field.description or "").split())
            yield Variable(variable, str(field.default), text)
