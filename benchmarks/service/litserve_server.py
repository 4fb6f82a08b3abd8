"""Reference: LitServe with the same model, using the functions of the library.

As a program: `python -m benchmarks.service.litserve_server PORT SIZE TIMEOUT WORKERS`,
with the maximum batch size and the batch timeout in seconds. A request is a form with the fields
`file` and `mode`. Every batch is one call of the library, with mixed modes. The server does not
validate requests, which is in its favour.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import Request
from litserve import LitAPI, LitServer
from torch import Tensor

from benchmarks.service.references import (
    InferenceInput,
    body,
    decode,
    default_model,
    predict,
)
from eulerlora_client.contract.sampling import Mode


class EulerLoRAAPI(LitAPI):  # type: ignore[misc] # litserve ships no types
    """The hooks of LitServe, in the order of a request."""

    def setup(self, device: str) -> None:
        """Loads the model in a worker process; the workers share the cores."""
        torch.set_num_threads(
            max(1, torch.get_num_threads() // int(os.environ["BENCHMARK_WORKERS"]))
        )
        self.model = default_model()

    def decode_request(self, request: Request) -> InferenceInput:
        """Decodes the form."""
        mode: Mode = "stoch" if request["mode"] == "stoch" else "det"
        return decode(self.model, request["file"].file.read(), mode)

    def batch(self, inputs: list[InferenceInput]) -> list[InferenceInput]:
        """Returns the list unchanged."""
        return inputs

    def predict(self, inputs: list[InferenceInput] | InferenceInput) -> list[Tensor] | Tensor:
        """Returns trajectories; LitServe passes a single input if it does not batch."""
        if isinstance(inputs, InferenceInput):
            return predict(self.model, [inputs])[0]
        return predict(self.model, inputs)

    def unbatch(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the list unchanged."""
        return outputs

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        """Returns the JSON values of a response."""
        return body(self.model, output)


def _main(port: int, batch_size: int, batch_timeout_s: float, workers: int) -> None:
    os.environ["BENCHMARK_WORKERS"] = str(workers)  # workers are separate processes
    api = EulerLoRAAPI(max_batch_size=batch_size, batch_timeout=batch_timeout_s)
    server = LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run("127.0.0.1", port, 1, "warning", generate_client_file=False)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    _main(int(arguments[0]), int(arguments[1]), float(arguments[2]), int(arguments[3]))
