"""POST /predict with concurrent requests: batches, disconnects, and overload."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

from eulerlora.model import EulerLoRA
from service.inference.queue import RequestQueue
from tests.service.routes.test_predict import TIMEOUT_S, result_of


def test_a_result_is_the_same_alone_and_in_a_mixed_batch(
    checkpoint_folder: Path, make_app, encode, monkeypatch
) -> None:
    enqueue, submitted = RequestQueue.enqueue, threading.Semaphore(0)

    def counting_enqueue(queue: RequestQueue, *arguments: Any) -> None:
        enqueue(queue, *arguments)
        submitted.release()

    monkeypatch.setattr(RequestQueue, "enqueue", counting_enqueue)
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    random = np.random.default_rng(4)
    images = [
        encode(Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)), "PNG")
        for _ in range(17)
    ]
    stoch = [{"mode": "stoch", "samples": 1 + n % 8} for n in range(9)]
    requests = list(zip(images, [*stoch, *[{}] * 8], strict=True))  # 75 + 16 rows of 128
    batches: list[int] = []
    entered, gate = threading.Event(), threading.Event()
    gate.set()

    def block(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        batches.append(len(inputs[0]))
        entered.set()
        assert gate.wait(TIMEOUT_S)

    with TestClient(make_app(model)) as client, ThreadPoolExecutor(18) as pool:

        def post_image(request: tuple[bytes, dict[str, object]]) -> dict[str, Any]:
            content, parameters = request
            return result_of(
                client.post(
                    "/predict",
                    params=parameters | {"detail": "trajectories"},
                    content=content,
                    headers={"Content-Type": "image/png"},
                )
            )

        alone = [post_image(request) for request in requests]
        for _ in requests:
            assert submitted.acquire(timeout=TIMEOUT_S)
        model.network.backbone.conv_proj.register_forward_pre_hook(block)
        gate.clear()
        blocking = pool.submit(post_image, requests[0])
        assert entered.wait(TIMEOUT_S)
        assert submitted.acquire(timeout=TIMEOUT_S)
        together = [pool.submit(post_image, request) for request in requests]
        for _ in requests:
            assert submitted.acquire(timeout=TIMEOUT_S)
        gate.set()
        results = [future.result(TIMEOUT_S) for future in together]
        assert blocking.result(TIMEOUT_S) == alone[0]
    assert batches == [1, 17]
    for one, other in zip(alone, results, strict=True):
        assert (one["seed"], one["label"]) == (other["seed"], other["label"])
        np.testing.assert_allclose(
            one["trajectory_probabilities"], other["trajectory_probabilities"], rtol=0, atol=1e-5
        )


def test_under_overload_requests_are_accepted_or_refused_immediately(model, make_app, png) -> None:
    entered, gate = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        entered.set()
        assert gate.wait(TIMEOUT_S)

    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model, max_waiting_rows=16)) as client, ThreadPoolExecutor(12) as pool:
        handle = model.network.backbone.conv_proj.register_forward_pre_hook(block)
        try:
            futures = [pool.submit(client.post, "/predict", **sent)]
            assert entered.wait(TIMEOUT_S)
            futures += [pool.submit(client.post, "/predict", **sent) for _ in range(11)]
            refusals = [future.result() for future in islice(as_completed(futures, TIMEOUT_S), 7)]
            assert not gate.is_set()
        finally:
            gate.set()
            handle.remove()
        statuses = [future.result(TIMEOUT_S).status_code for future in futures]
        assert client.post("/predict", **sent).status_code == 200
    assert sorted(statuses) == [200] * 5 + [503] * 7  # one runs, four wait
    for response in refusals:
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "overloaded"
        assert int(response.headers["Retry-After"]) >= 1
