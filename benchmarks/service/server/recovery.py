"""Recovery time of an overloaded service."""

import time
from http.client import HTTPConnection, HTTPException

from benchmarks.service.server.process import status

TIMEOUT_S = 60.0
PAUSE_S = 0.01


class NoRecoveryError(Exception):
    """The service did not recover in time."""


def recovery_seconds(port: int, image: bytes, probe_s: float) -> tuple[float, float]:
    """Returns the seconds to a /readyz with 200 within `probe_s`, and to a /predict with 200."""
    started = time.monotonic()
    while not _ready(port, probe_s):
        _pause(started)
    ready = time.monotonic() - started
    while not _predicts(port, image):
        _pause(started)
    return ready, time.monotonic() - started


def _ready(port: int, probe_s: float) -> bool:
    sent_s = time.monotonic()
    return status(port, "/readyz") == 200 and time.monotonic() - sent_s <= probe_s


def _predicts(port: int, image: bytes) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/predict", image, {"Content-Type": "image/jpeg"})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _pause(started: float) -> None:
    if time.monotonic() - started > TIMEOUT_S:
        raise NoRecoveryError(f"expected a recovery within {TIMEOUT_S:.0f} s")
    time.sleep(PAUSE_S)
