"""Latency of a single request, compared with a forward pass of the backbone."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import cycle
from urllib.parse import urlencode

import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.measurements.single_request import WARMUP_REQUESTS, timed
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.references.library import SAMPLES, default_model
from benchmarks.service.server.process import eulerlora_server
from eulerlora_client.contract.sampling import Mode

CPU = torch.device("cpu")
MAX_RATIO: dict[Mode, float] = {"det": 2.5, "stoch": 8.0}


def backbone_pass(plan: Plan) -> Iterator[Result]:
    """Compares both modes with passes of the backbone, in alternation.

    A pass runs in this process, in float32, on a fixed image. The time of a request is that of
    its client.
    """
    model = default_model()
    pixels = torch.rand(1, 3, *[model.config.preprocessing.size] * 2)
    images = cycle(synthetic_images(plan.image_count))

    @torch.inference_mode()
    def one_pass() -> object:
        return model.network.backbone(pixels)

    with (
        eulerlora_server(plan.options) as server,
        closing(HTTPConnection("127.0.0.1", server.port)) as connection,
    ):

        def send_request(target: str) -> object:
            return timed(connection, next(images), target)

        for mode, max_ratio in MAX_RATIO.items():
            trajectories = model.network.settings.adapters * (SAMPLES if mode == "stoch" else 1)
            comparison = Comparison(
                name=f"a lone answer, mode {mode}, {trajectories} trajectories / plain pass",
                ours="HTTP, at the client",
                reference="the frozen backbone",
                target=Target(bound="at most", value=max_ratio),
                libraries=LIBRARIES,
            )

            request = partial(send_request, f"/predict?{urlencode(parameters(mode))}")
            seconds = paired_seconds(request, one_pass, plan.single_requests, WARMUP_REQUESTS, CPU)
            yield comparison.result(*seconds, CPU, {"mode": mode, "trajectories": trajectories})
