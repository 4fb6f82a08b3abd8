"""What an operator can set about the service."""

import os
import resource
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from eulerlora.errors import SettingsError
from eulerlora.settings import PositiveInt, Settings, first_fault

PREFIX = "EULERLORA_SERVE_"
NESTED = "__"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ImageLimits(Settings):
    """Which images are decoded at all; decided from the header.

    min_side, max_side: of width and height, in pixels. max_pixels: of their product.
    """

    min_side: PositiveInt = 32
    max_side: PositiveInt = 8192
    max_pixels: PositiveInt = 24_000_000


class BodySettings(Settings):
    """What bodies may take.

    max_bytes: of one body, whole. max_batch_bytes, max_files: of one that holds many images.
    upload_timeout_s: from its headers to its last byte. stall_timeout_s: from one piece to the
    next. max_bytes_in_flight: of all bodies of requests that are not answered yet; one without a
    length counts as its limit.
    """

    max_bytes: PositiveInt = 20 * 1024 * 1024
    max_batch_bytes: PositiveInt = 128 * 1024 * 1024
    upload_timeout_s: Seconds = 30
    stall_timeout_s: Seconds = 5
    max_bytes_in_flight: PositiveInt = 512 * 1024 * 1024
    max_files: PositiveInt = 32


class ConnectionSettings(Settings):
    """What connections may take.

    header_timeout_s: from a connection's opening, or its next request's first byte, to the end of
    the headers. max_connections: open ones; with more, only probes are answered. spare_files: of
    the open files that the process may have, those kept for other things than connections; past
    the rest, each new connection ends the one that has waited longest without a request.
    """

    header_timeout_s: Seconds = 10
    max_connections: PositiveInt = 512
    spare_files: PositiveInt = 128

    def most_connections(self) -> int:
        """How many connections may be open at all."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, files - self.spare_files)


class DecodingSettings(Settings):
    """What decoding may take.

    workers: processes, and so images decoded at the same time. timeout_s: for one image.
    memory_bytes: of one worker, beyond what it uses when idle.
    """

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    timeout_s: Seconds = 10
    memory_bytes: PositiveInt = 1024**3


class LifeSettings(Settings):
    """How the process is watched, and how long it takes to stop; all in seconds.

    probe_interval_s: between two checks of the known answers; probe_timeout_s: within which each
    must be given. drain_s: for which requests are still accepted after a signal, so that load
    balancers may notice. shutdown_s: for which accepted ones are finished after that.
    """

    probe_interval_s: Seconds = 30
    probe_timeout_s: Seconds = 30
    drain_s: Annotated[float, Field(ge=0)] = 0
    shutdown_s: Seconds = 30


class ServiceSettings(BaseSettings):
    """Limits of the service.

    max_batch_rows: rows (image, trajectory) in one forward pass; a single question may exceed it.
    max_batch_s: seconds after which a pass that has not ended means a lost device.
    max_waiting_rows: rows of accepted questions that do not run yet. max_wait_s: seconds of work
    that may be waiting when another question is accepted. deadline_s: from a request's arrival;
    what has not begun to run by then is not run. fewer_samples: under load, a question is run with
    fewer samples than were asked for, and its answer says so.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )

    images: ImageLimits = ImageLimits()
    bodies: BodySettings = BodySettings()
    connections: ConnectionSettings = ConnectionSettings()
    decoding: DecodingSettings = DecodingSettings()
    life: LifeSettings = LifeSettings()
    max_batch_rows: PositiveInt = 128
    max_batch_s: Seconds = 60
    max_waiting_rows: PositiveInt = 1024
    deadline_s: Seconds = 10
    fewer_samples: bool = False


def settings_of_environment() -> ServiceSettings:
    """The settings in the process's variables: `EULERLORA_SERVE_DEADLINE_S=5`, and for those of
    a group `EULERLORA_SERVE_BODIES__MAX_BYTES=1000000`.

    Raises SettingsError for a name that is none of them, and for a value out of range.
    """
    known = set(variables(ServiceSettings))
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsError(f"{name}: no such setting; docs/service.md lists them")
    try:
        return ServiceSettings()
    except ValidationError as error:
        raise SettingsError(f"{PREFIX}*: {first_fault(error)}") from error


def variables(kind: type[BaseModel], prefix: str = PREFIX) -> Iterator[str]:
    """The names of the environment variables of all settings of a kind, groups included."""
    for name, field in kind.model_fields.items():
        full = prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, full + NESTED)
        else:
            yield full
