"""What clients see of their waiting: in Server-Timing, and after a slow upload."""

import socket
import time
from collections.abc import Iterator
from statistics import mean

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.attacks import phone_photograph
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Exchange, closed_loop
from benchmarks.service.load.request import post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server

CPU = torch.device("cpu")
MIN_EXPLAINED = 0.8
PIECES_A_SECOND = 2
UPLOADS = 3
OK = b"HTTP/1.1 200"


def waiting(plan: Plan) -> Iterator[Reading]:
    """Measures the share of time that Server-Timing explains, and the answers to slow uploads."""
    with eulerlora_server(plan.options) as server:
        phone = [post(phone_photograph())]
        load = closed_loop(server.port, phone, plan.clients, 2 * plan.clients)
        explained = [_explained(exchange) for exchange in load.successful]
        timing = Measurement(
            name=f"{plan.clients} clients with photographs of 12 megapixels: time explained",
            what="decode, queue and model of Server-Timing over the time at the client; mean",
            unit="share",
            target=Target(bound="at least", value=MIN_EXPLAINED),
            libraries=LIBRARIES,
        )
        refused = len(load.exchanges) - len(load.successful)
        yield timing.reading(mean(explained), explained, CPU, {"refused": refused})
        request = post(synthetic_images(1)[0])
        answered = [
            float(_upload(server.port, request, plan.slow_upload_s)) for _ in range(UPLOADS)
        ]
        uploads = Measurement(
            name=f"uploads of {plan.slow_upload_s:g} s: answered",
            what="pieces of the same size at the same distance",
            unit="share",
            target=Target(bound="at least", value=1.0),
            libraries=LIBRARIES,
        )
        yield uploads.reading(mean(answered), answered, CPU, {"deadline_s": plan.deadline_s})


def _explained(exchange: Exchange) -> float:
    assert exchange.response is not None
    return sum(exchange.response.server_seconds().values()) / exchange.seconds


def _upload(port: int, request: bytes, seconds: float) -> bool:
    """Returns True if a request that takes `seconds` to send is answered with 200."""
    pieces = max(2, round(PIECES_A_SECOND * seconds))
    size = -(-len(request) // pieces)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for start in range(0, len(request), size):
            if start:
                time.sleep(seconds / (pieces - 1))
            connection.sendall(request[start : start + size])
        return connection.recv(len(OK)) == OK
