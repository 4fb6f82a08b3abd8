"""The choice of a precision and of a runtime: what a checkpoint admits, and what is faster here."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import nn

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime, TorchRuntime, other_runtime
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw, RuntimeSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import AUTO, PRECISIONS, Precision, PrecisionChoice

_SLOW_KERNELS = ("DEFAULT", "NO AVX", "AVX2")
"""Kernels of torch without bfloat16, which ATEN_CPU_CAPABILITY can select on any CPU."""
REQUESTED = "set by the user"

_WORTHWHILE = 0.9
"""Largest time in bfloat16, as a part of that in float32, for which rounding is accepted; likewise
that of another runtime, as a part of torch's, for which it is chosen."""
_ROWS = {"cpu": 8, "cuda": 128}
"""Rows of the timed blocks: on a CPU those of an answer of two adapters with four samples, on a GPU
those of a full batch, so that computing and not launching kernels takes the time.
"""
_TIMED_DRAW = Draw(mode="stoch", samples=2)
"""Of the image by which runtimes are compared, with few rows because every start runs it. Mode det
has so few that its times differ more between runs than between runtimes.
"""
_TIMED_S = 0.3
"""Time for which the runs are repeated."""
_MAX_SLOWDOWN = 3.0
"""If a first run takes this many times as long as that of the other choice, it is the last."""


@dataclass(frozen=True)
class PrecisionDecision:
    """A precision, and why it was chosen, in one line."""

    precision: Precision
    reason: str


def decide_precision(
    choice: PrecisionChoice, config: CheckpointConfig, device: torch.device
) -> PrecisionDecision:
    """Chooses the precision in which to run a checkpoint on a device.

    `auto` is bfloat16 where it is faster (`faster_precision`) and changes few answers on the
    calibration images (`CheckpointConfig.bfloat16_fault`).
    """
    if choice != AUTO:
        missing = missing_bfloat16(device) if choice == "bfloat16" else None
        slow = "" if missing is None else f", but slow: {missing}"
        return PrecisionDecision(choice, REQUESTED + slow)
    fault = config.bfloat16_fault()
    if fault is not None:
        return PrecisionDecision("float32", fault)
    faster = faster_precision(config.backbone.settings, device)
    if faster.precision == "float32":
        return faster
    changes = "; ".join(entry.summary for entry in config.bfloat16)
    return PrecisionDecision("bfloat16", f"{faster.reason}; {changes}")


@dataclass(frozen=True)
class RuntimeDecision:
    """A runtime, and why it was chosen, in one line."""

    runtime: Runtime
    reason: str


def decide_runtime(
    network: AdaptedVisionTransformer, device: torch.device, settings: RuntimeSettings, digest: str
) -> RuntimeDecision:
    """Makes the runtime of a network.

    `auto` is OpenVINO if it can run the network and takes much less CPU time than torch for an
    image (`_TIMED_DRAW`, `_WORTHWHILE`), and otherwise torch.

    Args:
        network: In float32; it belongs to the runtime, which changes or frees weights.
        device: As in `Runtime`.
        settings: Their runtime is the choice.
        digest: Of the network's checkpoint.

    Raises:
        SettingsError: If OpenVINO is chosen and cannot run the network.
    """
    if settings.runtime == "torch":
        return RuntimeDecision(TorchRuntime(network, device, settings), REQUESTED)
    try:  # first, because torch's rounds the weights
        other = other_runtime("openvino", network, device, settings, digest)
    except SettingsError as error:
        if settings.runtime != AUTO:
            raise
        return RuntimeDecision(TorchRuntime(network, device, settings), str(error))
    if settings.runtime != AUTO:
        other.free_unread_weights()
        return RuntimeDecision(other, REQUESTED)
    plain = TorchRuntime(network, device, settings)
    plain_ms, other_ms = _pass_times_ms(plain, other)
    reason = (
        f"{_TIMED_DRAW.samples} samples of an image take {other_ms:.2f} ms of CPU by {other.name} "
        f"and {plain_ms:.2f} ms by {plain.name}"
    )
    if other_ms > _WORTHWHILE * plain_ms:
        limit = f"{other.name} is chosen if it takes up to {_WORTHWHILE:.0%} of {plain.name}'s time"
        return RuntimeDecision(plain, f"{reason}; {limit}")
    other.free_unread_weights()
    return RuntimeDecision(other, reason)


def _pass_times_ms(plain: Runtime, other: Runtime) -> tuple[float, float]:
    """CPU times of a pass of two runtimes of one network, of alternating runs.

    Both run on all their threads: a graph has a fixed number, and time for which threads wait for
    each other is lost to other requests too.
    """
    draw = _TIMED_DRAW

    def pass_of(runtime: Runtime) -> Callable[[], object]:
        size = runtime.network.backbone.settings.image_size
        image = torch.full((1, 3, size, size), 0.5)
        rows, draws = Rows.of([draw.count], runtime.settings.adapters), runtime.draw_rows([draw])
        return torch.inference_mode()(lambda: runtime(image, rows, draws))

    return _alternating_ms(pass_of(plain), pass_of(other), time.process_time)


def training_precision(
    choice: PrecisionChoice, network: nn.Module, device: torch.device
) -> Precision:
    """Precision of the training steps of a network; `auto` is the faster one."""
    if choice != AUTO:
        return choice
    assert isinstance(network.backbone, VisionTransformer)
    return faster_precision(network.backbone.settings, device, of_training=True).precision


@cache
def faster_precision(
    settings: BackboneSettings, device: torch.device, of_training: bool = False
) -> PrecisionDecision:
    """The precision in which a backbone's blocks are faster, measured once per process.

    `of_training`: with gradients, and weights in float32, as in a training step.
    """
    missing = missing_bfloat16(device)
    if missing is not None:
        return PrecisionDecision("float32", missing)
    exact, rounded = _block_times_ms(settings, device, of_training)
    times = f"two blocks take {rounded:.2f} ms in bfloat16 and {exact:.2f} ms in float32"
    faster = rounded <= _WORTHWHILE * exact
    return PrecisionDecision("bfloat16" if faster else "float32", times)


def missing_bfloat16(device: torch.device) -> str | None:
    """Why a device has no bfloat16 that could be faster than float32; None if it has."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return None if has_bfloat16 else f"the device {device} has no bfloat16"
    if device.type != "cpu":
        return f"bfloat16 has not been measured on the device {device}"
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")):
        return "the CPU has neither avx512_bf16 nor amx_bf16"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"torch uses its kernels for {kernels}" if kernels in _SLOW_KERNELS else None


def _block_times_ms(
    settings: BackboneSettings, device: torch.device, of_training: bool
) -> tuple[float, float]:
    """Times of two adapted blocks in float32 and in bfloat16, of alternating runs.

    A network of the first and the last block runs the rows of one image. A single block would be
    both, and skip most products: the first shares them between rows, and the last computes the
    class token alone. On a CPU it is the CPU time of one core, which other programs disturb little.
    """
    shape = settings.model_copy(update={"layers": 2})
    draw = Draw(mode="stoch", samples=_ROWS[device.type] // 2)
    image = torch.full((1, 3, shape.image_size, shape.image_size), 0.5, device=device)
    rows = Rows.of([draw.count], 2).to(device)

    def run_in(precision: Precision) -> Callable[[], object]:
        with torch.random.fork_rng(devices=()):  # the caller's random numbers stay as they are
            backbone = VisionTransformer(shape)
        network = build_network(backbone, AdapterSettings(adapters=2), 2).eval()
        network.initialise(torch.Generator().manual_seed(0))
        stored: Precision = "float32" if of_training else precision
        without_graphs = RuntimeSettings(precision=stored, graphs=False)
        runtime = TorchRuntime(network, device, without_graphs)
        draws = runtime.draw_rows([draw]).to(image)
        if not of_training:
            return torch.inference_mode()(lambda: runtime(image, rows, draws))
        rounding = partial(torch.autocast, device.type, torch.bfloat16, precision == "bfloat16")

        def step() -> None:
            with rounding():
                logits = network(image, rows, draws)
            logits.sum().backward()

        return step

    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def synchronised(run: Callable[[], object]) -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with _one_thread():
        exact, rounded = (partial(synchronised, run_in(one)) for one in PRECISIONS)
        return _alternating_ms(exact, rounded, clock)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread: the others, which wait for each other, take CPU time too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _alternating_ms(
    first: Callable[[], object], second: Callable[[], object], clock: Callable[[], float]
) -> tuple[float, float]:
    """Times of two runs, the shortest of alternating ones: other programs only ever add to them."""

    def timed(run: Callable[[], object]) -> float:
        started = clock()
        run()
        return 1e3 * (clock() - started)

    for _ in range(2):  # the first pass allocates and chooses kernels
        firsts, seconds = [timed(first)], [timed(second)]
    started = clock()
    while seconds[0] < _MAX_SLOWDOWN * firsts[0] and clock() - started < _TIMED_S:
        firsts.append(timed(first))
        seconds.append(timed(second))
    return min(firsts), min(seconds)
