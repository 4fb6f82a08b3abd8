"""Loading of checkpoints and the health check of served models.

A model must give its known answer before it is served, and repeatedly while it is, through the
queue that requests use.
"""

import asyncio
import logging
import math
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from eulerlora.checkpoint.config import MODEL_NAME
from eulerlora.checkpoint.files import (
    CONFIG_FILE,
    DEFAULT_CHECKPOINT,
    EXPECTED_FILE,
    KnownAnswer,
    load_checkpoint,
    predict_known_answer,
    read_known_answer,
)
from eulerlora.checkpoint.hub import PREFIX, Repository, download
from eulerlora.checkpoint.signature import Verify
from eulerlora.checkpoint.weights import CARD_FILE, stated_licence
from eulerlora.commands import DEFAULT_NAME
from eulerlora.inference import InferenceModel
from eulerlora.model import EulerLoRA
from eulerlora.nn.runtime import TorchRuntime
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.problems import OutOfMemory
from eulerlora_contract.sampling import PrecisionChoice, RuntimeChoice
from service.inference.engine import InferenceItem, ServedModel
from service.settings import VARIABLE_PREFIX

_MAX_CARD_BYTES = 1_000_000
_MAX_IDLE_PERIODS = 3  # of a health check
_RETRY_INTERVAL_S = 0.1  # of a health check without memory
_MAX_RETRIES = 100  # of one without a timeout
_NAMED = re.compile(r"([^/=]+)=(.+)", re.DOTALL)
"""A checkpoint with the name of its model, NAME=CHECKPOINT."""
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)
"""Of a model card: metadata for the Hugging Face Hub."""

_Result = TypeVar("_Result")
logger = logging.getLogger(__name__)
Infer = Callable[[ServedModel, InferenceItem], Awaitable[Tensor]]
"""From a model and an item to the item's log-probabilities (trajectories, classes)."""


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint to serve.

    Attributes:
        folder: Or a link to it, which every load follows anew.
        name: In requests; None for that of the checkpoint.
        url: Of its repository at a commit, None for a folder.
    """

    folder: Path
    name: str | None = None
    url: str | None = None

    @classmethod
    def of(cls, text: str) -> "CheckpointSource":
        """The source that an argument of `eulerlora serve` names.

        Args:
            text: `[NAME=]CHECKPOINT`, where CHECKPOINT is a path, `default` for the embedded one,
                or `hf://ORGANISATION/NAME[@REVISION]` for a repository of the Hugging Face Hub,
                which is downloaded.

        Raises:
            SettingsError: For a name that no model can have.
            HubError: For a repository that cannot be downloaded.
        """
        named = None if Path(text).exists() else _NAMED.fullmatch(text)
        name, checkpoint = (None, text) if named is None else named.groups()
        if name is not None and re.fullmatch(MODEL_NAME, name) is None:
            raise SettingsError(
                f"{text}: expected NAME=CHECKPOINT with a name of at most 64 characters: a-z, 0-9, "
                "period, underscore, hyphen"
            )
        if checkpoint == DEFAULT_NAME:
            return cls(DEFAULT_CHECKPOINT, name)
        if not checkpoint.startswith(PREFIX):
            return cls(Path(checkpoint), name)
        repository = Repository.of_url(checkpoint)
        folder = download(repository)
        return cls(folder, name, str(Repository(repository.name, revision=folder.name)))

    def load(
        self,
        others: Iterable[InferenceModel],
        device: str = "cpu",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
        verify: Verify | None = None,
        runtime: RuntimeChoice = "torch",
    ) -> "CheckedModel":
        """Loads the model and checks its known answer in every mode.

        The check runs without compilation, which belongs to the thread that runs the model: CUDA
        graphs cannot be captured while another thread uses the device.

        Device, precision, compiler and runtime are as in `EulerLoRA.load`. `others`: loaded models
        on the same device; an equal backbone in the same precision and runtime is shared. `verify`:
        checks the signature before anything else is read; None for no check.

        Raises:
            CheckpointError: For a checkpoint that is damaged or gives a wrong answer.
        """
        folder = self.folder.resolve()  # all files from one folder if a link changes meanwhile
        if verify is not None:
            verify(folder)
        checkpoint = load_checkpoint(folder)
        known, (card, licence) = read_known_answer(folder, checkpoint.config), _read_card(folder)
        model = EulerLoRA.of(checkpoint, device, precision, compiler, runtime)
        served = ServedModel(model, card, self.url, self.name, licence)
        _share_backbone(model, others)
        checked = model.runtime
        if compiler is not None:
            plain = RuntimeSettings(precision=model.precision)
            checked = TorchRuntime(model.network, model.device, plain)
        answers = predict_known_answer(
            checked, known.pixels.to(model.device), known.draws, checkpoint.config.temperatures
        )
        fault = known.fault(answers, model.precision)
        if fault is not None:
            raise CheckpointError(folder / EXPECTED_FILE, fault)
        return CheckedModel(self, known, served)


@dataclass(frozen=True)
class CheckedModel:
    """A model that gave its known answer."""

    source: CheckpointSource
    known: KnownAnswer
    served: ServedModel

    @property
    def model(self) -> InferenceModel:
        return self.served.model

    def log_choices(self) -> None:
        """Logs precision and runtime with their reasons, once the model is in use."""
        name, model = self.served.name, self.model
        logger.info("model %s: precision %s: %s", name, model.precision, model.precision_reason)
        logger.info("model %s: runtime %s: %s", name, model.runtime.name, model.runtime_reason)
        mismatch = model.config.calibration_mismatch(model.precision)
        if mismatch is not None:
            logger.warning("model %s: %s", name, mismatch)

    def newer_revision(
        self, load: "Load", others: Iterable[InferenceModel]
    ) -> "CheckedModel | None":
        """Loads the model that the source has now; None for the same revision.

        It reads the weights in either case: they can be damaged although `config.json`, and with
        it the revision, is the same.

        Raises:
            CheckpointError: For a folder that cannot replace it.
        """
        loaded = load(self.source, others)
        if loaded.model.revision == self.model.revision:
            return None
        fault = None
        if loaded.served.name != self.served.name:
            fault = f"expected a model named {self.served.name}, got {loaded.served.name}"
        elif loaded.model.classes != self.model.classes:
            old, new = ", ".join(self.model.classes), ", ".join(loaded.model.classes)
            fault = f"expected the classes {old}, got {new}; a restart serves others"
        if fault is not None:
            raise CheckpointError(self.source.folder / CONFIG_FILE, fault)
        return loaded

    async def fault(
        self, infer: Infer, timeout_s: float | None, progress: Callable[[], object] = lambda: None
    ) -> str | None:
        """Why the model is unhealthy, in one line, or None if it gives its known answer.

        A late answer is logged, since a busy machine is slow; it is a fault once nothing else was
        answered either. Retries after OutOfMemory, since other requests may have taken the memory.

        Args:
            infer: Uses the queue of the requests.
            timeout_s: For all draws together; None for no limit, but then `_MAX_RETRIES` at most.
            progress: Changes with every answer; `_MAX_IDLE_PERIODS` timeouts without are a fault.
        """
        retries = _MAX_RETRIES if timeout_s is None else sys.maxsize
        answering = asyncio.create_task(_known_answers(self, infer, retries))
        idle, before = 0, progress()
        try:
            # Several waits: one ends at once if the process was suspended, as by `docker pause`.
            while not (await asyncio.wait([answering], timeout=timeout_s))[0]:
                now = progress()
                idle, before = idle + 1 if now == before else 0, now
                late = (
                    f"model {self.served.name}: no known answer within {timeout_s:g} s "
                    f"({VARIABLE_PREFIX}LIFE__PROBE_TIMEOUT_S): the machine is overloaded, or the "
                    "device hangs"
                )
                if idle == _MAX_IDLE_PERIODS:
                    return late
                logger.warning("%s", late)
            fault = self.known.fault(await answering, self.model.precision)
        except Exception as error:
            return f"model {self.served.name}: no known answer ({type(error).__name__}: {error})"
        finally:
            answering.cancel()
        return None if fault is None else f"model {self.served.name}: {fault}"

    async def warm_up(self, infer: Infer, max_batch_rows: int) -> None:
        """Runs items that fill one batch, so that the queue can estimate its throughput.

        Ignores errors.
        """
        served, item = self.served, InferenceItem(self.known.pixels, Draw())
        count = math.ceil(min(max_batch_rows, served.max_rows_per_pass) / served.adapters)
        await asyncio.gather(*(infer(served, item) for _ in range(count)), return_exceptions=True)


Load = Callable[[CheckpointSource, Iterable[InferenceModel]], CheckedModel]


def _read_card(folder: Path) -> tuple[str, str | None]:
    """The model card of a checkpoint without its front matter, and the licence in that.

    A card that is missing or unreadable is empty.
    """
    try:
        with (folder / CARD_FILE).open("rb") as file:
            text = file.read(_MAX_CARD_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return "", None
    return _FRONT_MATTER.sub("", text), stated_licence(text)


def _share_backbone(model: InferenceModel, others: Iterable[InferenceModel]) -> None:
    """Replaces the frozen weights of a model by those of another one with the same backbone.

    All models are on their device, in their precision and by their runtime already; no tensor is
    converted, and models that differ in one of them share nothing.
    """

    def key(one: InferenceModel) -> tuple[str, ...]:
        return one.config.backbone.sha256, one.precision, one.runtime.name

    for other in others:
        if key(other) == key(model):
            shared = dict(other.network.backbone.named_parameters())
            for name, parameter in model.network.backbone.named_parameters():
                parameter.data = shared[name].data
            return


async def run_in_daemon_thread(work: Callable[[], _Result]) -> _Result:
    """Runs `work` in a daemon thread, which continues after a cancellation.

    Neither torch nor a disk read can be interrupted, and the interpreter's exit would wait for a
    thread of the event loop's executor.
    """
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(future)


async def _known_answers(checked: CheckedModel, infer: Infer, retries: int) -> list[Tensor]:
    answers: list[Tensor] = []
    draws = checked.known.draws
    while len(answers) < len(draws):
        try:
            item = InferenceItem(checked.known.pixels, draws[len(answers)])
            answers.append(await infer(checked.served, item))
        except OutOfMemory:
            if not retries:
                raise
            retries -= 1
            await asyncio.sleep(_RETRY_INTERVAL_S)
    return answers
