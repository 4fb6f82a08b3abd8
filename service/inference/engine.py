"""The served models by name, and inference on the device of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from eulerlora.inference import InferenceModel
from eulerlora.nn.device import stream_of_thread, upload_stack
from eulerlora.nn.network import predict_images
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import OutOfMemory, UnknownModel

_Result = TypeVar("_Result")

_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
"""Parts of the messages of allocation errors that torch raises as a plain RuntimeError."""

_LOST_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error [CUDA]")
"""Prefixes of the messages of device errors that torch raises as a plain RuntimeError. After one of
them, the results of a CUDA context are undefined.
"""


class DeviceFailed(Exception):  # noqa: N818 - describes the device, not a request
    """The device is lost; only a new process can use it again."""


def _with_device_errors(run: Callable[[], _Result]) -> _Result:
    """Calls `run` and raises its errors of the device under their own classes.

    They are raised outside the `except` block: a traceback would keep the tensors of the batch
    alive.

    Raises:
        OutOfMemory: If an allocation failed; the device stays usable.
        DeviceFailed: If the device itself failed.
    """
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        is_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        out_of_memory = is_memory or any(part in text for part in _OUT_OF_MEMORY)
        lost = isinstance(error, torch.AcceleratorError) or text.startswith(_LOST_DEVICE)
        if not out_of_memory and not lost:
            raise
        message = text.partition("\n")[0]
    if out_of_memory:
        raise OutOfMemory("the device had no memory for this image")
    raise DeviceFailed(message)


@dataclass(frozen=True)
class InferenceItem:
    """One image and the draw to run it with.

    Attributes:
        pixels: The network's input, of the shape of the model's preprocessing.
    """

    pixels: Tensor
    draw: Draw


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One revision of a model, and batches of it on its device.

    At most `worker_count` threads may call `infer` at the same time.

    Attributes:
        card: In Markdown, empty if there is none.
        source: The repository at the served commit, None for a folder.
        given_name: In requests; None for that of the checkpoint.
        licence: As its card states it, None if it does not.
    """

    model: InferenceModel
    card: str = ""
    source: str | None = None
    given_name: str | None = None
    licence: str | None = None

    @property
    def name(self) -> str:
        """In requests."""
        return self.given_name or self.model.config.name

    @property
    def adapters(self) -> int:
        """An item has `Draw.count` rows for each."""
        return self.model.network.settings.adapters

    @cached_property
    def sampling_digest(self) -> str:
        """As `CheckpointConfig.sampling_digest`, computed once."""
        return self.model.config.sampling_digest

    @property
    def max_rows_per_pass(self) -> int:
        """Of one forward pass; a larger batch runs in several."""
        return self.model.runtime.max_rows_per_pass

    def infer(self, items: Sequence[InferenceItem]) -> list[Trajectories]:
        """The trajectories of each item, from one batch.

        Items of different modes and numbers of samples share the batch.

        Raises:
            OutOfMemory: If an allocation failed; the device stays usable.
            DeviceFailed: If the device is lost.
        """
        model = self.model

        def run() -> list[Trajectories]:
            with stream_of_thread(model.device):
                pixels = upload_stack([item.pixels for item in items], model.device)
                draws = [item.draw for item in items]
                return predict_images(model.runtime, pixels, draws, model.config.temperatures)

        return _with_device_errors(run)


def check_same_input(shadow: ServedModel, served: ServedModel) -> None:
    """Checks that a shadow can use the input of the served network.

    Raises:
        SettingsError: If it cannot.
    """
    fields = {"resize", "interpolation", "size", "shorter_side", "canvas"}
    expected, given = (
        one.model.config.preprocessing.model_dump(include=fields) for one in (served, shadow)
    )
    if expected != given:
        described = (", ".join(f"{k}={v}" for k, v in each.items()) for each in (expected, given))
        raise SettingsError(
            "the shadow of {}: expected the input {}, got {}".format(served.name, *described)
        )


class ServedModels(Mapping[str, ServedModel]):
    """The served models by name; the first is the default.

    Raises SettingsError if two models have the same name.
    """

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        by_name: dict[str, ServedModel] = {}
        for model in models:
            if model.name in by_name:
                raise SettingsError(
                    f"expected distinct model names, got {model.name} twice; "
                    "name a model with NAME=CHECKPOINT"
                )
            by_name[model.name] = model
        self._models = by_name

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> str:
        """The name of the model for requests that name none."""
        return next(iter(self._models))

    def named(self, name: str | None) -> ServedModel:
        """The model of that name, or the default for None.

        Raises:
            UnknownModel: If no served model has it.
        """
        with suppress(KeyError):
            return self._models[self.default if name is None else name]
        raise UnknownModel(f"the served models are: {', '.join(self._models)}")

    def replace(self, *models: ServedModel) -> None:
        """Serves models, in place of those of the same name; requests that hold one keep it."""
        by_name = {served.name: served for served in models}
        self._models = {**self._models, **by_name}  # atomic for concurrent readers
