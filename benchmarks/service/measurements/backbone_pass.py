"""What a lone answer over HTTP costs, in passes of the plain backbone."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import cycle
from urllib.parse import urlencode

import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.measurements.single_request import WARM, timed
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.references.library import SAMPLES, embedded_model
from benchmarks.service.server.process import eulerlora_server
from eulerlora.settings import Mode

CPU = torch.device("cpu")
MOST: dict[Mode, float] = {"det": 2.5, "stoch": 8.0}


def plain_pass(plan: Plan) -> Iterator[Result]:
    """For both modes: requests one after another, in turn with passes of torchvision's network.

    The passes are of one picture, decoded beforehand, in float32, in this process; a request's
    seconds are all that its client waits.
    """
    model = embedded_model()
    pixels = torch.rand(1, 3, *[model.config.preprocessing.size] * 2)
    photographs = cycle(made_up_photographs(plan.photographs))

    @torch.inference_mode()
    def one_pass() -> object:
        return model.network.backbone(pixels)

    with (
        eulerlora_server(plan.options) as server,
        closing(HTTPConnection("127.0.0.1", server.port)) as connection,
    ):

        def one_answer(target: str) -> object:
            return timed(connection, next(photographs), target)

        for mode, most in MOST.items():
            trajectories = model.network.settings.adapters * (SAMPLES if mode == "stoch" else 1)
            comparison = Comparison(
                name=f"a lone answer, mode {mode}, {trajectories} trajectories / plain pass",
                ours="HTTP, at the client",
                reference="torchvision's VisionTransformer",
                target=Target(bound="at most", value=most),
                libraries=LIBRARIES,
            )

            ask = partial(one_answer, f"/predict?{urlencode(parameters(mode))}")
            seconds = paired_seconds(ask, one_pass, plan.lone_requests, WARM, CPU)
            yield comparison.result(*seconds, CPU, {"mode": mode, "trajectories": trajectories})
