"""Reference: LitServe with the same model, using the functions of the library.

As a program: `python -m eulerlora_lab.benchmarks.service.litserve_server PORT [NETWORK]`. A request
is a form with the fields `file` and `mode`. Every batch of at most 8, gathered for 5 ms by two
workers, which were the best settings, is one run of the network, with mixed modes. The server does
not validate requests, which is in its favour. NETWORK is one of

- `float32`: the library, in float32 by torch (the default);
- `chosen`: the library, in the precision and the runtime that it chooses;
- `exported`: mode det as ONNX (`eulerlora export --format onnx`), which OpenVINO runs as it starts;
- `free`: none, at no cost (`free_network.free_answers`).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openvino
import torch
from fastapi import Request
from litserve import LitAPI, LitServer
from torch import Tensor

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, load_checkpoint
from eulerlora.plugins.onnx_export import export_onnx
from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.service.free_network import free_answers
from eulerlora_lab.benchmarks.service.references import (
    body,
    chosen_model,
    default_model,
    inference_item,
    predict,
)
from service.inference.engine import InferenceItem

WORKERS = 2


class _EulerLoRAAPI(LitAPI):  # type: ignore[misc] # litserve ships no types
    """The hooks of LitServe, in the order of a request."""

    def __init__(self, is_chosen: bool, **batches: float) -> None:
        super().__init__(**batches)
        self.is_chosen = is_chosen

    def setup(self, device: str) -> None:
        """Loads the model in a worker process; the workers share the cores."""
        torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))
        self.model = chosen_model() if self.is_chosen else default_model()

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


class _ExportedAPI(_EulerLoRAAPI):
    """The same for the exported network, which returns the mean over adapters."""

    def __init__(self, network: Path, **batches: float) -> None:
        super().__init__(is_chosen=False, **batches)
        self.network = network

    def setup(self, device: str) -> None:
        """Compiles the network in a worker process."""
        super().setup(device)
        threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.compiled = openvino.Core().compile_model(self.network, "CPU", threads)

    def predict(self, inputs: list[InferenceItem] | InferenceItem) -> list[Tensor] | Tensor:
        """Probabilities (1, classes) of every image."""
        if isinstance(inputs, InferenceItem):
            return self.predict([inputs])[0]
        pixels = torch.stack([item.pixels for item in inputs])
        return list(torch.from_numpy(self.compiled(pixels.numpy())[0]).unsqueeze(1))


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


def _api(network: str, folder: Path) -> LitAPI:
    """folder: an empty one, for the exported network."""
    batches = {"max_batch_size": 8, "batch_timeout": 0.005}
    if network == "free":
        return _FreeAPI()
    if network == "exported":
        export_onnx(load_checkpoint(DEFAULT_CHECKPOINT), folder)
        return _ExportedAPI(folder / "model.onnx", **batches)
    return _EulerLoRAAPI(is_chosen=network == "chosen", **batches)


if __name__ == "__main__":
    with TemporaryDirectory() as exported_to:
        api = _api("".join(sys.argv[2:]) or "float32", Path(exported_to))
        server = LitServer(api, accelerator="cpu", workers_per_device=WORKERS)
        server.run("127.0.0.1", int(sys.argv[1]), 1, "warning", generate_client_file=False)
