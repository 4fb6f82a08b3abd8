"""LitServe with the same model: decodes and answers by the library's own functions.

As a program: `python -m benchmarks.service.references.litserve_server PORT BATCH_SIZE BATCH_TIMEOUT WORKERS`.
A request is a form with the fields `file` and `mode`. Every batch is one call of the library, for
it takes modes mixed. Nothing is checked as a service would have to: that is to the peer's gain.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import Request
from litserve import LitAPI, LitServer
from torch import Tensor

from benchmarks.service.references.library import Asked, answers, body, decoded, embedded_model
from eulerlora.settings import Mode


class Peer(LitAPI):  # type: ignore[misc] # litserve ships no types
    """The hooks of LitServe, in the order in which a request passes them."""

    def setup(self, device: str) -> None:
        """In each worker: they share the cores."""
        torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["PEER_WORKERS"])))
        self.model = embedded_model()

    def decode_request(self, request: Request) -> Asked:
        """A form -> a question."""
        mode: Mode = "stoch" if request["mode"] == "stoch" else "det"
        return decoded(self.model, request["file"].file.read(), mode)

    def batch(self, inputs: list[Asked]) -> list[Asked]:
        """As it is: the library takes a list."""
        return inputs

    def predict(self, inputs: list[Asked] | Asked) -> list[Tensor] | Tensor:
        """Questions -> trajectories; LitServe passes a lone question where it does not batch."""
        if isinstance(inputs, Asked):
            return answers(self.model, [inputs])[0]
        return answers(self.model, inputs)

    def unbatch(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """As they are."""
        return outputs

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        """Trajectories -> JSON."""
        return body(self.model, output)


def _main(port: int, batch_size: int, batch_timeout_s: float, workers: int) -> None:
    os.environ["PEER_WORKERS"] = str(workers)  # workers are processes of their own
    api = Peer(max_batch_size=batch_size, batch_timeout=batch_timeout_s)
    server = LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run("127.0.0.1", port, 1, "warning", generate_client_file=False)


if __name__ == "__main__":
    given = sys.argv[1:]
    _main(int(given[0]), int(given[1]), float(given[2]), int(given[3]))
