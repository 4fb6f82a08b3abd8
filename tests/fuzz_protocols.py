"""`python -m tests.fuzz_protocols PROTOCOL SECONDS [SEED]`: malformed bodies for a real server.

PROTOCOL: json, binary or dicom. Ends with status 1 and prints the body, as base64, of a request
without a documented answer: any status of 500 and more, no answer within a minute, or a problem
that is not the protocol's. Prints the counts by status and the growth of the server's memory.
"""

import asyncio
import json
import os
import random
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable

import httpx

from benchmarks.service.server import eulerlora_server, growth, sampled, status
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from service.settings import PREFIX
from tests.protocol_bodies import PROTOCOLS, Body

CLIENTS = 2
TIMEOUT_S = 60.0
WARMUP_SHARE = 1 / 3
MEMORY_SAMPLES = 200
STATUSES = {200, 400, 413, 415, 422}
PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}
SETTINGS = {
    "IMAGES__DICOM": "true",
    "DECODING__CLIENT_S_PER_MINUTE": "1000",  # the only client sends only this
    "BODIES__STALL_TIMEOUT_S": "60",
}


class UndocumentedAnswerError(Exception):
    """A request had no documented answer."""


def check(response: httpx.Response) -> None:
    """Raises AssertionError for an undocumented answer."""
    assert response.status_code in STATUSES, response.text[:300]
    if response.status_code == 200:
        return
    document = response.json()
    if response.request.url.path.endswith("/infer"):
        assert set(document) == {"error"}, document
    else:
        assert set(document) == PROBLEM_KEYS, document


async def fuzz(
    port: int, create: Callable[[random.Random], Body], until_s: float, seed: int
) -> Counter[int]:
    """Sends bodies until a point in monotonic time; returns the counts by status.

    Raises UndocumentedAnswerError.
    """
    counts: Counter[int] = Counter()
    model = read_config(DEFAULT_CHECKPOINT).name

    async def client(draw: random.Random) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            while time.monotonic() < until_s:
                body = create(draw)
                path = f"/v2/models/{model}/infer" if body.path == "/infer" else body.path
                headers = dict(body.headers)
                try:
                    response = await http.post(
                        path, content=body.content, headers=headers, timeout=TIMEOUT_S
                    )
                    check(response)
                except (AssertionError, httpx.HTTPError, json.JSONDecodeError) as error:
                    text = b64encode(body.content).decode()
                    raise UndocumentedAnswerError(
                        f"{path} {headers}: {type(error).__name__} {error}\n{text}"
                    ) from error
                counts[response.status_code] += 1

    draws = [random.Random(f"{seed} {number}") for number in range(CLIENTS)]
    await asyncio.gather(*map(client, draws))
    return counts


def main(protocol: str, seconds: float, seed: int = 0) -> int:
    """Fuzzes a server; returns the exit status."""
    os.environ |= {PREFIX + name: value for name, value in SETTINGS.items()}
    with (
        eulerlora_server() as server,
        sampled(server.pid, seconds / MEMORY_SAMPLES) as samples,
    ):
        try:
            until_s = time.monotonic() + seconds
            counts = asyncio.run(fuzz(server.port, PROTOCOLS[protocol], until_s, seed))
        except UndocumentedAnswerError as error:
            print(error)
            return 1
        is_ready = status(server.port, "/readyz") == 200
    grown = growth(samples, seconds * WARMUP_SHARE)
    state = "ready" if is_ready else "NOT READY"
    print(f"{protocol}: {counts.total()} bodies in {seconds:g} s, by status {dict(counts)}")
    print(f"RSS {grown:+.1%} after the first third; the server is {state}")
    return 0 if is_ready else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])))
