"""How soon a service that was overloaded answers again."""

import time
from http.client import HTTPConnection, HTTPException

from benchmarks.service.server.process import status

GIVE_UP_S = 60.0
PAUSE_S = 0.01


class NotRecovered(Exception):  # noqa: N818 - read as a sentence
    """The service did not answer again."""


def seconds_until_it_answers(port: int, photograph: bytes, probe_s: float) -> tuple[float, float]:
    """From now to a /readyz that answers 200 within `probe_s`, and to a /predict with an answer."""
    started = time.monotonic()
    while not _ready(port, probe_s):
        _pause(started)
    ready = time.monotonic() - started
    while not _answers(port, photograph):
        _pause(started)
    return ready, time.monotonic() - started


def _ready(port: int, probe_s: float) -> bool:
    asked = time.monotonic()
    return status(port, "/readyz") == 200 and time.monotonic() - asked <= probe_s


def _answers(port: int, photograph: bytes) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
    try:
        connection.request("POST", "/predict", photograph, {"Content-Type": "image/jpeg"})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _pause(started: float) -> None:
    if time.monotonic() - started > GIVE_UP_S:
        raise NotRecovered(f"no answer within {GIVE_UP_S:.0f} s")
    time.sleep(PAUSE_S)
