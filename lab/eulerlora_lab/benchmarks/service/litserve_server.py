"""Reference: LitServe with the same model, using the functions of the library.

As a program: `python -m eulerlora_lab.benchmarks.service.litserve_server PORT`. A request is a form
with the fields `file` and `mode`. Every batch of at most 8, gathered for 5 ms by two workers, which
were the best settings, is one call of the library, with mixed modes. The server does not validate
requests, which is in its favour. With a second argument `free`, the network costs nothing
(`free_network.free_answers`).
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import Request
from litserve import LitAPI, LitServer
from torch import Tensor

from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.service.free_network import free_answers
from eulerlora_lab.benchmarks.service.references import body, default_model, inference_item, predict
from service.inference.engine import InferenceItem

WORKERS = 2


class _EulerLoRAAPI(LitAPI):  # type: ignore[misc] # litserve ships no types
    """The hooks of LitServe, in the order of a request."""

    def setup(self, device: str) -> None:
        """Loads the model in a worker process; the workers share the cores."""
        torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))
        self.model = default_model()

    def decode_request(self, request: Request) -> InferenceItem:
        """Decodes the form."""
        mode: Mode = "stoch" if request["mode"] == "stoch" else "det"
        return inference_item(self.model, request["file"].file.read(), mode)

    def batch(self, inputs: list[InferenceItem]) -> list[InferenceItem]:
        """The list unchanged."""
        return inputs

    def predict(self, inputs: list[InferenceItem] | InferenceItem) -> list[Tensor] | Tensor:
        """Trajectories; LitServe passes a single input if it does not batch."""
        if isinstance(inputs, InferenceItem):
            return predict(self.model, [inputs])[0]
        return predict(self.model, inputs)

    def unbatch(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The list unchanged."""
        return outputs

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        """The JSON values of a response."""
        return body(self.model, output)


class _FreeAPI(LitAPI):  # type: ignore[misc] # litserve ships no types
    """The same for a network that costs nothing: nothing is gained by a batch."""

    def setup(self, device: str) -> None:
        """Loads the model in a worker process, for its classes."""
        self.answer = free_answers()

    def decode_request(self, request: Request) -> bytes:
        """The file of the form."""
        data: bytes = request["file"].file.read()
        return data

    def predict(self, data: bytes) -> dict[str, Any]:
        """Decodes the file; the JSON values of a response."""
        return self.answer(data)


if __name__ == "__main__":
    if sys.argv[2:] == ["free"]:
        api = _FreeAPI()
    else:
        api = _EulerLoRAAPI(max_batch_size=8, batch_timeout=0.005)
    server = LitServer(api, accelerator="cpu", workers_per_device=WORKERS)
    server.run("127.0.0.1", int(sys.argv[1]), 1, "warning", generate_client_file=False)
