"""Reference: BentoML with the same model, using the functions of the library.

As a program: `python -m bentoml serve benchmarks.service.bentoml_server:BatchedModel`. A request is
a form with the field `file`: a batch of BentoML has one parameter, so that each mode has its own
path, `/predict` of mode stoch and `/predict/det`. Two workers with one core each gather batches of
at most 8, for a time that BentoML adapts; each decodes its batch. The server does not validate
requests, which is in its favour.
"""

from pathlib import Path
from typing import Any

import bentoml
import torch

from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.service.references import body, default_model, inference_item, predict

WORKERS, _BATCH_SIZE = 2, 8


@bentoml.service(workers=WORKERS, logging={"access": {"enabled": False}})
class BatchedModel:
    """A worker process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = default_model()

    @bentoml.api(route="/predict", batchable=True, max_batch_size=_BATCH_SIZE)  # type: ignore[untyped-decorator]
    def stoch(self, file: list[Path]) -> list[dict[str, Any]]:
        """Answers a batch of images in mode stoch."""
        return self._answers(file, "stoch")

    @bentoml.api(route="/predict/det", batchable=True, max_batch_size=_BATCH_SIZE)  # type: ignore[untyped-decorator]
    def det(self, file: list[Path]) -> list[dict[str, Any]]:
        """Answers a batch of images in mode det."""
        return self._answers(file, "det")

    def _answers(self, files: list[Path], mode: Mode) -> list[dict[str, Any]]:
        inputs = [inference_item(self.model, file.read_bytes(), mode) for file in files]
        return [body(self.model, trajectories) for trajectories in predict(self.model, inputs)]
