"""Which methods help where adapters do all of the adapting? Frozen backbone, random heads.

    python -m eulerlora_lab.adaptation --data DIR --backbone FILE --out FOLDER

DIR has cifar10-jpeg.tar.xz and svhn/. The program makes the runs of the protocol in
lab/docs/protocols.md, fixed before the first one: it tunes the methods in turn and trains each at
its best rate and gain. A finished run is a line of FOLDER/methods.jsonl, with its logits in
FOLDER/logits, and is not repeated: with these a study continues on another machine. An interrupted
run continues from its last epoch, to equal bits. Several processes may share a FOLDER.
FOLDER/methods.npz has the losses and confidences of the test pictures for every finished row of the
table and seed; `eulerlora_lab.adaptation_results` makes the tables of both files.
"""

import argparse
import fcntl
import itertools
import json
import math
import platform
import subprocess
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim import AdamW

from eulerlora.checkpoint.weights import at_image_size, load_backbone, tensors_sha256
from eulerlora.images.preprocess import network_input
from eulerlora.methods.registry import DEFAULT_METHOD, build_network
from eulerlora.nn.method import LabelledBatch, Method, MethodSettings, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer, Block, adapted_block
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Preprocessing
from eulerlora_contract.output_files import atomic_write
from eulerlora_lab.bfloat16 import fast_products
from eulerlora_lab.methods.bayeslora import BayesLoRASettings
from eulerlora_lab.methods.ensembles import LastLayerEnsembleSettings
from eulerlora_lab.methods.heads import SNGPSettings
from eulerlora_lab.methods.posteriors import LaplaceSettings, SWAGSettings, TFBSettings
from eulerlora_lab.methods.variational import (
    BLoBSettings,
    GaussianCoefficientsSettings,
    IVONSettings,
)
from training.adaptation.network import whole_network
from training.adaptation.objective import AdapterObjective, DropoutBlock
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset, read_ood_set
from training.data.images import LabelledImage, evenly_spaced
from training.data.registry import OodSettings
from training.evaluation.metrics import log_mean_probability
from training.optimisation.step import attention_kernels, warmup_cosine
from training.recipe.schema import AdapterTraining, WholeNetworkSettings

IMAGES, _IMAGE_SIZE, EPOCHS, BATCH, _EVALUATION_BATCH = 2500, 56, 8, 32, 16
_WEIGHT_DECAY, _CLIP_NORM = 0.01, 1.0
_SAMPLES = 4
"""Samples per adapter in mode stoch."""
TUNING_SEEDS, SEEDS = (100, 101), (0, 42, 1206)
"""Of the runs that choose, and of those of the table; each seed has its own training images."""
_DATA = DataSettings(
    kind="imagefolder",
    path="cifar10-jpeg.tar.xz",
    split="lesion-best-epoch",
    at_most={"validation": 1000, "test": 2000},
)
_LADDER = tuple(float(f"{base}e{exponent}") for exponent in range(-6, 2) for base in (1, 3))
"""The learning rates that may be tried, a half decade apart."""
_MAX_EXTENSIONS, _EDGE = 2, 0.1
"""Further rates that are tried beyond a rate that is better than its neighbour by _EDGE nats."""


@dataclass(frozen=True)
class Arm:
    """What is trained: one adapter of rank 20, or what takes its place.

    Attributes:
        sampling: Draws in training.
        dropout: Of the inputs of A, in training and in mode stoch.
        whole: All weights are trained.
        fitted: Trains nothing: its method is fitted to the trained adapter of `lora`.
        options: Each is fitted on the first tuning seed; the table has the best one.
    """

    method: MethodSettings = DEFAULT_METHOD
    sampling: bool = False
    dropout: float = 0.0
    whole: bool = False
    adapters: int = 1
    rank: int = 20
    rates: tuple[float, float] = (3e-4, 1e-3)
    gains: tuple[float, ...] = (0.3, 1.0)
    fitted: bool = False
    options: tuple[MethodSettings, ...] = ()


ARMS: Mapping[str, Arm] = {
    "lora": Arm(),
    "eulerlora": Arm(sampling=True),
    "mc-dropout": Arm(dropout=0.1),
    "laplace": Arm(LaplaceSettings(structure="kron", images=512), fitted=True),
    "swag": Arm(
        fitted=True, options=tuple(SWAGSettings(learning_rate=rate) for rate in (1e-3, 1e-2, 1e-1))
    ),
    "tfb": Arm(
        fitted=True, options=tuple(TFBSettings(tolerance=share) for share in (0.01, 0.03, 0.1))
    ),
    "sngp": Arm(SNGPSettings()),
    "last-layer": Arm(LastLayerEnsembleSettings(), adapters=4, rank=1, gains=(1.0,)),
    "bayeslora": Arm(BayesLoRASettings(), sampling=True),
    "scalabl": Arm(GaussianCoefficientsSettings(), sampling=True),
    "blob": Arm(BLoBSettings(), sampling=True),
    "ivon": Arm(IVONSettings(), sampling=True, rates=(1e-1, 3e-1)),
    "whole": Arm(whole=True, rates=(3e-5, 1e-4), gains=(1.0,)),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: members of an arm that answer together, and their mode.

    Each member is a run. It learns from its own loss, and its gradient is clipped by itself, so
    that a member does not depend on how many there are: smaller ensembles share those of larger
    ones.

    Attributes:
        samples: Per adapter; 0 is mode det.
        tuned_as: The row whose rate and gain this one takes; itself if empty.
        phase: Lower ones run first, each with its tuning: what ends early is useful by itself.
    """

    arm: str
    members: int = 1
    samples: int = 0
    tuned_as: str = ""
    phase: int = 0

    @property
    def mode(self) -> str:
        return f"stoch-{self.samples}" if self.samples else "det"


ROWS: Mapping[str, Row] = {
    "lora": Row("lora"),
    "lora-sampled": Row("lora", samples=_SAMPLES, tuned_as="lora"),
    "eulerlora-1": Row("eulerlora", samples=_SAMPLES),
    "eulerlora-1-det": Row("eulerlora", tuned_as="eulerlora-1"),
    "eulerlora-2": Row("eulerlora", members=2, samples=_SAMPLES),
    "eulerlora-2-det": Row("eulerlora", members=2, tuned_as="eulerlora-2"),
    "ensemble-2": Row("lora", members=2),
    "mc-dropout": Row("mc-dropout", samples=_SAMPLES, phase=1),
    "ensemble-8": Row("lora", members=8, tuned_as="ensemble-2", phase=2),
    "laplace": Row("laplace", samples=_SAMPLES, tuned_as="lora", phase=3),
    "swag": Row("swag", samples=_SAMPLES, tuned_as="lora", phase=3),
    "tfb": Row("tfb", samples=_SAMPLES, tuned_as="lora", phase=3),
    "last-layer-ensemble": Row("last-layer", phase=4),
    "sngp": Row("sngp", phase=4),
    "bayeslora": Row("bayeslora", samples=_SAMPLES, phase=5),
    "scalabl": Row("scalabl", samples=_SAMPLES, phase=6),
    "blob": Row("blob", samples=_SAMPLES, phase=7),
    "ivon": Row("ivon", samples=_SAMPLES, phase=8),
    "deep-ensemble": Row("whole", members=4, tuned_as="whole", phase=9),
    "ensemble-16": Row("lora", members=16, tuned_as="ensemble-2", phase=10),
    "whole": Row("whole", phase=9),
}


@dataclass(frozen=True)
class StudyRun:
    """A training of one member.

    Attributes:
        option: Of the arm's options.
    """

    stage: Literal["tuning", "claims", "repeat"]
    arm: str
    gain: float
    rate: float
    seed: int
    member: int = 0
    option: int | None = None

    @property
    def name(self) -> str:
        option = "" if self.option is None else f"-option{self.option}"
        cell = f"{self.arm}-{self.gain:g}-{self.rate:g}{option}"
        return f"{self.stage}-{cell}-{self.seed}-{self.member}"

    @property
    def member_seed(self) -> int:
        """Of the initial tensors and of the draws; member 0 has the seed itself."""
        if self.member == 0:
            return self.seed
        return int(np.random.SeedSequence((self.seed, self.member)).generate_state(1)[0])


@dataclass(frozen=True, order=True)
class _Cell:
    gain: float
    rate: float


Results = Mapping[StudyRun, Mapping[str, Any]]
"""The lines of finished runs."""


def _planned_runs(results: Results) -> Iterator[StudyRun]:
    """Yields the runs that the results allow, in the order of the protocol.

    A phase whose tuning has not finished yields the tuning runs that are known so far.
    """
    for phase in sorted({row.phase for row in ROWS.values()}):
        rows = [row for row in ROWS.values() if row.phase == phase]
        yield from dict.fromkeys(itertools.chain(*(_tuning_runs(row, results) for row in rows)))
        claims = (claims_runs(row, results) for row in rows)
        yield from sorted(
            dict.fromkeys(itertools.chain(*claims)), key=lambda run: SEEDS.index(run.seed)
        )
        if phase == 0:
            yield from (replace(run, stage="repeat") for run in repeated(results))


def repeated(results: Results) -> list[StudyRun]:
    """The run that is made twice, to compare its bits."""
    return list(claims_runs(ROWS["lora"], results))[:1]


def _tuning_runs(row: Row, results: Results) -> Iterator[StudyRun]:
    """Yields the runs that choose rate and gain of a row, or the option of a fitted arm."""
    arm = ARMS[row.arm]
    if arm.fitted:
        cell = chosen_cell(ROWS["lora"], results)
        if cell is not None:
            for option in range(len(arm.options)):
                yield _tuning_run(row.arm, cell, TUNING_SEEDS[0], option=option)
        return
    if row.tuned_as:
        return
    first, second = TUNING_SEEDS
    for cell in first_cells(row, results):
        yield from _cell_runs(row, cell, first)
    for cell in finalists(row, results):
        yield from _cell_runs(row, cell, second)


def _tuning_run(
    arm: str, cell: _Cell, seed: int, member: int = 0, option: int | None = None
) -> StudyRun:
    return StudyRun("tuning", arm, cell.gain, cell.rate, seed, member, option)


def _cell_runs(row: Row, cell: _Cell, seed: int) -> list[StudyRun]:
    """The members that a cell of a row is judged by; one adapter is judged by the mean of two where
    two are trained anyway."""
    pairs = max(other.members for other in ROWS.values() if _is_tuned(other, row.arm))
    return [_tuning_run(row.arm, cell, seed, member) for member in range(pairs)]


def _is_tuned(row: Row, arm: str) -> bool:
    return row.arm == arm and not row.tuned_as


def first_cells(row: Row, results: Results) -> list[_Cell]:
    """The cells of the first tuning seed: the grid, then rates beyond its edge at the best gain.

    The next rate is added if the best cell is at the edge and better than its neighbour by _EDGE:
    otherwise the best rate is about there or between the two.
    """
    arm = ARMS[row.arm]
    cells = [_Cell(gain, rate) for gain in arm.gains for rate in arm.rates]
    for _ in range(_MAX_EXTENSIONS):
        nll = _known_nll(row, cells, TUNING_SEEDS[0], results)
        if nll is None:
            break
        best = min(cells, key=nll.__getitem__)
        lowest, *_, highest = rates = sorted(cell.rate for cell in cells if cell.gain == best.gain)
        at = rates.index(best.rate)
        neighbour = rates[1] if at == 0 else rates[at - 1]
        is_steep = nll[_Cell(best.gain, neighbour)] - nll[best] > _EDGE
        if best.rate not in (lowest, highest) or not is_steep:
            break
        step = -1 if best.rate == lowest else 1
        cells.append(_Cell(best.gain, _LADDER[_LADDER.index(best.rate) + step]))
    return cells


def finalists(row: Row, results: Results) -> list[_Cell]:
    """The best two cells of the first tuning seed; none before its runs."""
    cells = first_cells(row, results)
    nll = _known_nll(row, cells, TUNING_SEEDS[0], results)
    return [] if nll is None else sorted(cells, key=nll.__getitem__)[:2]


def chosen_cell(row: Row, results: Results) -> _Cell | None:
    """The finalist with the lowest mean NLL over both tuning seeds; None before its runs."""
    row = ROWS[row.tuned_as] if row.tuned_as else row
    cells = finalists(row, results)
    by_seed = [_known_nll(row, cells, seed, results) for seed in TUNING_SEEDS]
    complete = [nll for nll in by_seed if nll]
    if len(complete) < len(TUNING_SEEDS):
        return None
    return min(cells, key=lambda cell: sum(nll[cell] for nll in complete))


def _known_nll(
    row: Row, cells: Sequence[_Cell], seed: int, results: Results
) -> dict[_Cell, float] | None:
    """The NLL of every cell; None before their runs."""
    known = {cell: cell_nll(row, cell, seed, results) for cell in cells}
    values = {cell: nll for cell, nll in known.items() if nll is not None}
    return values if len(values) == len(cells) else None


def cell_nll(row: Row, cell: _Cell, seed: int, results: Results) -> float | None:
    """Validation NLL of a cell in the mode of the row; None before its runs.

    That of the members together, or for a row of one member the mean over the members.
    """
    known = [results.get(run) for run in _cell_runs(row, cell, seed)]
    members = [result["validation"] for result in known if result is not None]
    if len(members) < len(known):
        return None
    if row.members == 1:
        nll = float(np.mean([validation[row.mode] for validation in members]))
    else:
        nll = float(members[-1][f"{row.mode}-members"])
    return nll if math.isfinite(nll) else math.inf


def chosen_option(arm: str, results: Results) -> int | None:
    """The option of a fitted arm with the lowest validation NLL; None before its runs."""
    cell = chosen_cell(ROWS["lora"], results)
    if cell is None:
        return None
    known = [
        results.get(_tuning_run(arm, cell, TUNING_SEEDS[0], option=option))
        for option in range(len(ARMS[arm].options))
    ]
    nll = [run["validation"][f"stoch-{_SAMPLES}"] for run in known if run is not None]
    return int(np.argmin(np.nan_to_num(nll, nan=np.inf))) if len(nll) == len(known) else None


def claims_runs(row: Row, results: Results) -> Iterator[StudyRun]:
    """Yields the runs of a row of the table; none before its tuning."""
    cell, arm, option = chosen_cell(row, results), ARMS[row.arm], None
    if cell is None:
        return
    if arm.options:
        option = chosen_option(row.arm, results)
        if option is None:
            return
    for seed, member in itertools.product(SEEDS, range(row.members)):
        yield StudyRun("claims", row.arm, cell.gain, cell.rate, seed, member, option)


def prepared(
    images: Sequence[LabelledImage], preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, size, size) uint8 of the network's input, and labels (n,)."""
    pixels = [
        network_input(image.pixels(), preprocessing).mul(255).round().byte() for image in images
    ]
    return torch.stack(pixels), torch.tensor([image.label for image in images])


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored images, shifted by up to an eighth of their side; (n, 3, s, s) in [0, 1]."""
    images = pixels.float() / 255
    border = images.shape[-1] // 8
    padded = nn.functional.pad(images, [border] * 4, mode="reflect")
    views = []
    for image in padded:
        top, left = torch.randint(2 * border + 1, (2,), generator=generator).tolist()
        view = image[:, top : top + pixels.shape[-1], left : left + pixels.shape[-1]]
        mirrored = torch.rand(2, generator=generator)[0] < 0.5
        views.append(view.flip(2) if mirrored else view)
    return torch.stack(views)


class _Pictures:
    """The images of all parts, prepared for a network and kept for the next run."""

    def __init__(self, directory: Path, preprocessing: Preprocessing) -> None:
        images = read_dataset(_DATA, directory)
        svhn = read_ood_set(OodSettings(kind="images", path="svhn"), directory).images
        test = images.parts["test"]
        self._parts = {**images.parts, "svhn": evenly_spaced(svhn, len(test))}
        self._preprocessing = preprocessing
        self._prepared: dict[str, LabelledBatch] = {}
        self.classes = len(images.classes)

    def part(self, name: str) -> LabelledBatch:
        """`validation`, `test` or `svhn`, whose labels are none of the classes."""
        return self._of(name, self._parts[name])

    def training(self, seed: int) -> LabelledBatch:
        """The training images of a seed, of all classes equally."""
        images = self._parts["train"]
        labels = [image.label for image in images]
        chosen, _ = train_test_split(images, train_size=IMAGES, stratify=labels, random_state=seed)
        return self._of(f"train-{seed}", chosen)

    def _of(self, name: str, images: Sequence[LabelledImage]) -> LabelledBatch:
        if name not in self._prepared:
            self._prepared[name] = prepared(images, self._preprocessing)
        return self._prepared[name]


def _epoch_batches(images: LabelledBatch, seed: int, epoch: int) -> Iterator[LabelledBatch]:
    """Yields the views of an epoch and their labels; its own generator gives order and views."""
    pixels, labels = images
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
        yield augmented(pixels[batch], generator), labels[batch]


@dataclass(frozen=True)
class _TrainedRun:
    """The `FinishedRun` of a run, in float32."""

    images: LabelledBatch
    validation: LabelledBatch
    objective: AdapterObjective
    seed: int
    clip_norm: float = _CLIP_NORM

    @property
    def image_count(self) -> int:
        return len(self.images[1])

    def last_epoch(self) -> Iterator[LabelledBatch]:
        return _epoch_batches(self.images, self.seed, EPOCHS - 1)

    def inputs(self, part: Literal["train", "calibration"], count: int) -> LabelledBatch:
        pixels, labels = self.images if part == "train" else self.validation
        chosen = evenly_spaced(range(len(labels)), count)
        return pixels[list(chosen)].float() / 255, labels[list(chosen)]

    def losses(self, steps: int) -> Iterator[Tensor]:
        epochs = (_epoch_batches(self.images, self.seed, epoch) for epoch in itertools.count())
        batches = itertools.islice(itertools.chain.from_iterable(epochs), steps)
        for step, (views, labels) in enumerate(batches):
            draw = self.objective.draw(self.seed, step, 0)
            loss = self.objective.loss(self.objective.network, views, labels, draw)
            yield loss / self.objective.weight(labels)

    def total(self, values: Tensor) -> Tensor:
        return values


def _network_of(
    run: StudyRun, arm: Arm, backbone_file: Path, classes: int
) -> AdaptedVisionTransformer:
    """The network of a run before its training."""
    file = load_backbone(backbone_file)
    backbone = at_image_size(file.backbone, _IMAGE_SIZE)
    preprocessing = file.preprocessing.at_size(_IMAGE_SIZE)
    generator = torch.Generator().manual_seed(run.member_seed)
    if arm.whole:
        network = whole_network(backbone, WholeNetworkSettings(), classes, preprocessing)
        network.heads.initialise(generator)
        return network
    settings = AdapterSettings(adapters=arm.adapters, rank=arm.rank, init_gain=run.gain)
    network = build_network(backbone, settings, classes, preprocessing, arm.method)
    network.initialise(generator)
    if not _is_fitted_in_float32(network):
        _round_frozen(network)
    return network


def _is_fitted_in_float32(network: AdaptedVisionTransformer) -> bool:
    return type(network.method).after_training is not Method.after_training


def _round_frozen(network: AdaptedVisionTransformer) -> None:
    """Rounds the frozen matrices once: autocast would round them to the same values in every step,
    which takes a fifth of its time."""
    for layer in network.backbone.encoder.layers:
        for module in layer.modules():
            if isinstance(module, (nn.Linear, nn.MultiheadAttention)):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.bfloat16()


@torch.inference_mode()
def _logits_of(network: AdaptedVisionTransformer, arm: Arm, pixels: Tensor, samples: int) -> Tensor:
    """Logits (n, trajectories, classes) float32; 0 samples are mode det.

    Every image has draws of its own, from a generator of its index; dropout has one for each
    batch.
    """
    batches, adapters = [], network.settings.adapters
    for start in range(0, len(pixels), _EVALUATION_BATCH):
        part = pixels[start : start + _EVALUATION_BATCH].float() / 255
        count, generators = len(part), map(torch.Generator().manual_seed, itertools.count(start))
        block: Block = adapted_block
        if samples and not arm.dropout:
            drawn = [network.method.sample(samples, next(generators)) for _ in range(count)]
        else:
            drawn = [network.method.det().repeated(samples or 1)] * count
        if samples and arm.dropout:
            block = DropoutBlock(arm.dropout, next(generators))
        draws = RowDraws.cat(drawn, [adapters * (samples or 1)] * count)
        with torch.autocast("cpu", torch.bfloat16):
            rows = Rows.of([samples or 1] * count, adapters)
            logits = network(part, rows, draws, block=block)
        batches.append(logits.float().view(count, adapters * (samples or 1), -1))
    return torch.cat(batches)


def _mean_log_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Logarithms of the mean probabilities (n, classes), float64, of (n, trajectories, classes)."""
    return log_mean_probability((logits.double() / temperature).log_softmax(dim=-1))


def _losses_of(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    return -log_probabilities[torch.arange(len(labels)), labels]


def _fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of the logits with the lowest NLL of the mean probability."""

    def nll(log_temperature: float) -> float:
        scaled = _mean_log_probabilities(logits, math.exp(log_temperature))
        return float(_losses_of(scaled, labels).mean())

    return math.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x)


def _train_run(
    run: StudyRun,
    network: AdaptedVisionTransformer,
    objective: AdapterObjective,
    images: LabelledBatch,
    state_file: Path,
) -> tuple[list[dict[str, float]], float]:
    """Trains in place; returns the curve and the seconds of processor time.

    The curve has of every epoch the mean training loss and the share of steps whose gradient was
    clipped. Training ends with a loss that is not finite.
    """
    arm = ARMS[run.arm]
    named = {n: p for n, p in network.named_parameters() if p.requires_grad}
    own = objective.optimiser(named, _WEIGHT_DECAY)
    optimiser = own or AdamW(named.values(), lr=run.rate, weight_decay=_WEIGHT_DECAY)
    clipped = list(named.values()) if own is None else own.param_groups[0]["params"]
    steps_per_epoch = math.ceil(IMAGES / BATCH)
    fraction = warmup_cosine(EPOCHS * steps_per_epoch, "auto")
    order_seed = run.member_seed if arm.whole else run.seed  # members of adapters share the views
    curve: list[dict[str, float]] = []
    seconds = 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        if state["run"] == asdict(run):
            with torch.no_grad():
                for name, parameter in named.items():
                    parameter.copy_(state["weights"][name])
            optimiser.load_state_dict(state["optimiser"])
            curve, seconds = state["curve"], state["cpu_s"]
    for epoch in range(len(curve), EPOCHS):
        started, total, long = time.process_time(), 0.0, 0
        for index, (views, labels) in enumerate(_epoch_batches(images, order_seed, epoch)):
            step = epoch * steps_per_epoch + index
            for group in optimiser.param_groups:
                group["lr"] = run.rate * fraction(step)
            with attention_kernels(torch.device("cpu")):
                with torch.autocast("cpu", torch.bfloat16):
                    draw = objective.draw(run.member_seed, step, 0)
                    loss = objective.loss(network, views, labels, draw) / objective.weight(labels)
                optimiser.zero_grad()
                loss.backward()
            norm = nn.utils.clip_grad_norm_(clipped, _CLIP_NORM)
            if not (math.isfinite(loss.item()) and norm.isfinite()):
                print(f"  step {step}: loss {loss.item()}, gradient norm {norm:g}", flush=True)
                return [*curve, {"loss": math.nan, "clipped": math.nan}], seconds
            optimiser.step()
            objective.after_step()
            total, long = total + loss.item() * len(labels), long + int(norm > _CLIP_NORM)
        seconds += time.process_time() - started
        curve.append({"loss": total / IMAGES, "clipped": long / steps_per_epoch})
        print(f"  epoch {epoch + 1}: {curve[-1]}", flush=True)
        state = {
            "run": asdict(run),
            "weights": {name: parameter.detach() for name, parameter in named.items()},
            "optimiser": optimiser.state_dict(),
            "curve": curve,
            "cpu_s": seconds,
        }
        torch.save(state, state_file.with_suffix(".new"))
        state_file.with_suffix(".new").replace(state_file)
    return curve, seconds


@dataclass(frozen=True)
class Folder:
    """What the program writes: lines of results and logits, which are kept, and in `unfinished` the
    state and lock of a run, and weights to which methods are fitted."""

    path: Path

    @property
    def lines(self) -> Path:
        return self.path / "methods.jsonl"

    @property
    def pictures(self) -> Path:
        return self.path / "methods.npz"

    def results(self) -> Results:
        return {StudyRun(**result["run"]): result for result in read_results(self.lines)}

    def unfinished(self, run: StudyRun, ending: str) -> Path:
        folder = self.path / "unfinished"
        folder.mkdir(exist_ok=True)
        return folder / f"{run.name}.{ending}"

    def logits(self, run: StudyRun) -> Path:
        folder = self.path / "logits"
        folder.mkdir(exist_ok=True)
        return folder / f"{run.name}.npz"

    @contextmanager
    def claimed(self, runs: Iterable[StudyRun]) -> Iterator[StudyRun | None]:
        """Gives the first of the runs that no other process makes, and keeps others from it."""
        for run in runs:
            with self.unfinished(run, "lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                if run not in self.results():  # finished since the runs were listed
                    yield run
                    return
        yield None

    def read_logits(self, runs: Iterable[StudyRun], part: str, mode: str) -> Tensor:
        """Logits (n, trajectories of all runs, classes)."""
        arrays = [np.load(self.logits(run))[f"{part}-{mode}"] for run in runs]
        return torch.from_numpy(np.concatenate(arrays, axis=1))


def _run_result(
    run: StudyRun, backbone: Path, pictures: _Pictures, folder: Folder
) -> dict[str, Any]:
    """Trains and evaluates a run; returns its line."""
    arm = ARMS[run.arm]
    if run.option is not None:
        arm = replace(arm, method=arm.options[run.option])
    network = _network_of(run, arm, backbone, pictures.classes)
    images, validation = pictures.training(run.seed), pictures.part("validation")
    objective = _objective(network, arm, pictures.classes)
    result: dict[str, Any] = {"run": asdict(run)}
    started = time.process_time()
    if arm.fitted:
        of_lora = _lora_weights(replace(run, arm="lora", option=None), backbone, pictures, folder)
        for name, value in of_lora.items():
            network.get_parameter(name).data.copy_(value)
        is_finite = True
    else:
        curve, seconds = _train_run(
            run, network, objective, images, folder.unfinished(run, "state")
        )
        result |= {"curve": curve, "cpu_s": round(seconds)}
        is_finite = math.isfinite(curve[-1]["loss"])
        started = time.process_time()
    if is_finite and _is_fitted_in_float32(network):
        finished = _TrainedRun(images, validation, objective, run.seed)
        with attention_kernels(torch.device("cpu")):
            network.method.after_training(network, finished)
        result["fit_cpu_s"] = round(time.process_time() - started)
        result["fitted"] = network.method.settings.model_dump(mode="json")
    started = time.process_time()
    result["sha256"] = tensors_sha256(_trained(network))
    rows = [row for row in ROWS.values() if row.arm == run.arm and run.member < row.members]
    if run.stage == "tuning":
        rows = [row for row in rows if arm.fitted or not row.tuned_as]
    parts = ("validation",) if run.stage == "tuning" else ("validation", "test", "svhn")
    logits: dict[str, Any] = {}
    for row, part in itertools.product({row.mode: row for row in rows}.values(), parts):
        values = _logits_of(network, arm, pictures.part(part)[0], row.samples)
        if part == "svhn":  # no temperature is fitted to them: their mean is all that is read
            values = _mean_log_probabilities(values).unsqueeze(1)
        logits[f"{part}-{row.mode}"] = values.numpy().astype(np.float16)
    np.savez_compressed(folder.logits(run), **logits)
    result["validation"] = {}
    for row in rows:
        members = [replace(run, member=member) for member in range(row.members)]
        if run.stage == "tuning" and run.member == row.members - 1 > 0:
            of_members = folder.read_logits(members, "validation", row.mode)
            result["validation"][f"{row.mode}-members"] = _nll(of_members, validation[1])
        own = folder.read_logits([run], "validation", row.mode)
        result["validation"][row.mode] = _nll(own, validation[1])
    result["evaluation_cpu_s"] = round(time.process_time() - started)
    return result


def _objective(network: AdaptedVisionTransformer, arm: Arm, classes: int) -> AdapterObjective:
    settings = AdapterTraining(
        epochs=EPOCHS,
        batch_size=BATCH,
        samples=1,
        sampling=arm.sampling,
        adapter_dropout=arm.dropout,
    )
    return AdapterObjective(network, settings, torch.ones(classes), image_count=IMAGES)


def _trained(network: AdaptedVisionTransformer) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in network.named_parameters() if p.requires_grad}


def _lora_weights(
    run: StudyRun, backbone: Path, pictures: _Pictures, folder: Folder
) -> Mapping[str, Tensor]:
    """The trained tensors of a run of `lora`, which is repeated once for the methods fitted to it:
    only its logits are kept."""
    path = folder.unfinished(run, "pt")
    if not path.exists():
        arm = ARMS[run.arm]
        network = _network_of(run, arm, backbone, pictures.classes)
        objective = _objective(network, arm, pictures.classes)
        images = pictures.training(run.seed)
        _train_run(run, network, objective, images, folder.unfinished(run, "state"))
        torch.save(_trained(network), path)
    weights: Mapping[str, Tensor] = torch.load(path, weights_only=True)
    return weights


def _nll(logits: Tensor, labels: Tensor) -> float:
    return float(_losses_of(_mean_log_probabilities(logits), labels).mean())


def collect(folder: Folder, labels: Mapping[str, Tensor]) -> None:
    """Writes the losses and confidences of the rows and seeds whose runs are finished."""
    results = folder.results()
    arrays: dict[str, Any] = {}
    for name, row in ROWS.items():
        runs = list(claims_runs(row, results))
        for seed in SEEDS:
            members = [run for run in runs if run.seed == seed]
            if members and all(run in results for run in members):
                values = _picture_values(folder, row, members, labels)
                arrays |= {f"{name}/{seed}/{key}": value for key, value in values.items()}
    with atomic_write(folder.pictures) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _picture_values(
    folder: Folder, row: Row, members: Sequence[StudyRun], labels: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Of every test picture its loss, its confidence (MSP) and if its label is right, at
    temperature 1 and, `_scaled`, at the one fitted to the validation part; confidences on SVHN."""
    logits = {
        part: folder.read_logits(members, part, row.mode) for part in ("validation", "test", "svhn")
    }
    temperature = _fitted_temperature(logits["validation"], labels["validation"])
    values: dict[str, Any] = {"temperature": temperature}
    for ending, of_logits in (("", 1.0), ("_scaled", temperature)):
        log_p = _mean_log_probabilities(logits["test"], of_logits)
        values[f"nll{ending}"] = _losses_of(log_p, labels["test"]).float().numpy()
        values[f"confidence{ending}"] = log_p.amax(dim=-1).exp().float().numpy()
        values[f"right{ending}"] = (log_p.argmax(dim=-1) == labels["test"]).numpy()
    values["svhn"] = _mean_log_probabilities(logits["svhn"]).amax(dim=-1).exp().float().numpy()
    return values


def read_results(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a file of results; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def processor() -> str:
    """The model of the processor; weights have equal bits on equal ones."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _is_ready(run: StudyRun, results: Results) -> bool:
    """False if another process still trains a member with which a tuning run is measured."""
    earlier = (replace(run, member=member) for member in range(run.member))
    return run.stage != "tuning" or all(member in results for member in earlier)


def _make_runs(folder: Folder, data: Path, backbone: Path) -> bool:
    """Makes all runs that have no line; False if some of them failed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    facts = {
        "commit": commit,
        "torch": torch.__version__,
        "cpu": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    preprocessing = load_backbone(backbone).preprocessing.at_size(_IMAGE_SIZE)
    pictures = _Pictures(data, preprocessing)
    failed: set[StudyRun] = set()
    while True:
        results = folder.results()
        pending = [
            run
            for run in _planned_runs(results)
            if run not in {*results, *failed} and _is_ready(run, results)
        ]
        with folder.claimed(pending) as run:
            if run is None:
                break
            print(f"{time.strftime('%F %T')} {run.name}, {len(pending)} planned", flush=True)
            started = time.monotonic()
            try:
                with fast_products():
                    result = _run_result(run, backbone, pictures, folder)
            except Exception:  # the other methods do not wait for a person
                traceback.print_exc()
                failed.add(run)
                continue
            result |= {"wall_s": round(time.monotonic() - started), **facts}
            with folder.lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            folder.unfinished(run, "state").unlink(missing_ok=True)
        if run.stage == "claims":
            labels = {part: pictures.part(part)[1] for part in ("validation", "test")}
            collect(folder, labels)
    return not failed


def main() -> None:
    """Makes the runs of the table, or collects the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the order of sums depends on their number
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not _make_runs(Folder(arguments.out), arguments.data, arguments.backbone):
        raise SystemExit("some runs failed, see above; they are repeated at the next start")


if __name__ == "__main__":
    main()
