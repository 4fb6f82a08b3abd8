"""Networks that OpenVINO runs: torch's answers, the cache of graphs, and what is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import TOLERANCES
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.precision import RuntimeDecision, decide_runtime
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import Precision, RuntimeChoice
from tests.conftest import needs_openvino, random_network

pytestmark = needs_openvino

CPU = torch.device("cpu")
BACKBONES: dict[str, dict[str, object]] = {
    "torchvision": {},
    "one block": {"layers": 1},
    "by distance": {"attention": "l2"},
    "as DINOv2": {"layer_scale": True, "registers": 2, "activation": "swiglu", "layers": 1},
    "as DINOv3": {"positions": "rotary", "layer_scale": True, "registers": 2},
    "as CLIP": {"pre_norm": True, "activation": "quick-gelu", "final_norm": "none"},
    "mean of patches": {"pooling": "mean", "stem": "convolution", "final_norm": "pooled"},
}
OPTIONS: dict[str, dict[str, object]] = {
    "det": {},
    "one sample": {"mode": "stoch", "samples": 1, "seed": 1},
    "samples and views": {"mode": "stoch", "samples": 4, "views": 8, "seed": 2},
    "balanced": {"mode": "stoch", "samples": 8, "sampler": "balanced"},
    "auto": {"mode": "stoch", "samples": "auto"},
}


def difference(actual: EulerLoRA, expected: EulerLoRA, images: Tensor, **options: object) -> float:
    """Largest difference of a trajectory's probability."""
    pairs = [model.predict(images, **options).trajectories for model in (actual, expected)]
    return float((pairs[0] - pairs[1]).abs().max())


def both(folder: Path, precision: Precision = "float32") -> tuple[EulerLoRA, EulerLoRA]:
    actual = EulerLoRA.load(folder, "cpu", precision, runtime="openvino")
    assert actual.runtime.name == "openvino"
    return actual, EulerLoRA.load(folder, "cpu")


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=list(BACKBONES))
def test_a_graph_gives_the_answers_of_torch_in_every_mode(
    backbone: dict[str, object], make_checkpoint, images: Tensor
) -> None:
    actual, expected = both(make_checkpoint(**backbone))
    for options in ({}, {"mode": "stoch", "samples": 3, "seed": 1}):
        assert difference(actual, expected, images, **options) < 1e-5


@pytest.fixture(scope="module")
def pair(checkpoint_folder: Path) -> tuple[EulerLoRA, EulerLoRA]:
    return both(checkpoint_folder)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_options_give_the_answers_of_torch(
    options: dict[str, object], pair: tuple[EulerLoRA, EulerLoRA], images: Tensor
) -> None:
    predictions = [model.predict(images, **options) for model in pair]
    actual, expected = (prediction.trajectories for prediction in predictions)
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5, equal_nan=True)


def test_the_revision_does_not_depend_on_the_runtime(pair: tuple[EulerLoRA, EulerLoRA]) -> None:
    assert pair[0].revision == pair[1].revision


def test_bfloat16_keeps_the_probabilities_within_the_tolerance_of_the_known_answer(
    checkpoint_folder: Path, images: Tensor
) -> None:
    actual, expected = both(checkpoint_folder, "bfloat16")
    for options in OPTIONS.values():
        if options.get("samples") != "auto":  # which may end in another round
            assert difference(actual, expected, images, **options) < TOLERANCES["bfloat16"]


def decided(
    network: AdaptedVisionTransformer, runtime: RuntimeChoice, digest: str = "sha256:0"
) -> RuntimeDecision:
    return decide_runtime(network, CPU, RuntimeSettings(runtime=runtime), digest)


@pytest.fixture(params=[1, 2, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("adapters", [1, 3])
def test_any_number_of_members_and_threads_has_the_outputs_of_torch(
    adapters: int, images: Tensor
) -> None:
    settings = AdapterSettings(adapters=adapters, rank=4, min_rank=2)
    network = random_network(settings)
    draws = [Draw(), Draw(mode="stoch", samples=3, seed=1), Draw()]
    rows = Rows.of([draw.count for draw in draws], adapters)
    arguments = images, rows, network.draw_rows(draws)
    with torch.inference_mode():
        expected = network.outputs(*arguments)
        actual = decided(network, "openvino").runtime.outputs(*arguments)
    for values, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(values, exact, rtol=0, atol=1e-4)


def test_adapters_may_have_different_numbers_of_rows(images: Tensor) -> None:
    network, image = random_network(), torch.tensor([0, 0, 1])
    draws = network.draw_rows([Draw(), Draw()]).rows(slice(3))
    cases = [Rows.grouped(image, torch.tensor(adapter)) for adapter in ([0, 0, 1], [1, 1, 1])]
    with torch.inference_mode():
        expected = [network(images, rows, draws) for rows in cases]
        runtime = decided(network, "openvino").runtime
        actual = [runtime(images, rows, draws) for rows in cases]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_rows_of_several_passes_have_the_outputs_of_one(images: Tensor) -> None:
    network = random_network()
    runtime = decided(network, "openvino").runtime
    rows, draws = Rows.of([1, 1, 1], 2), network.draw_rows([Draw()] * 3)
    with torch.inference_mode():
        expected = runtime(images, rows, draws)
        runtime.max_rows_per_pass = 2
        torch.testing.assert_close(runtime(images, rows, draws), expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("threads")
def test_threads_run_passes_at_the_same_time(images: Tensor) -> None:
    network = random_network()
    rows, draws = Rows.of([1], 2), network.draw_rows([Draw()])
    expected = [network(images[index : index + 1], rows, draws).detach() for index in range(3)]
    runtime = decided(network, "openvino").runtime

    @torch.inference_mode()
    def run(index: int) -> list[Tensor]:
        return [runtime(images[index : index + 1], rows, draws) for _ in range(20)]

    with ThreadPoolExecutor(3) as pool, torch.inference_mode():
        for answers, answer in zip(pool.map(run, range(3)), expected, strict=True):
            for actual in answers:
                torch.testing.assert_close(actual, answer, rtol=0, atol=1e-4)


class OtherDraws(type(random_network().method)):  # type: ignore[misc]
    """A method that draws more than coefficients."""

    def det(self) -> RowDraws:
        blocks = super().det().blocks
        return RowDraws({**blocks, "noise": torch.zeros(2, self.depth, 1)})


@pytest.fixture
def drawing_more(monkeypatch: pytest.MonkeyPatch) -> AdaptedVisionTransformer:
    network = random_network()
    network.method = OtherDraws(network.method.settings, network.method.shape)
    return network


def test_a_network_that_draws_more_than_coefficients_keeps_torch(
    drawing_more: AdaptedVisionTransformer,
) -> None:
    with pytest.raises(SettingsError):
        decided(drawing_more, "openvino")
    decision = decided(drawing_more, "auto")
    assert decision.runtime.name == "torch"
    assert "draws" in decision.reason


def test_a_compiler_and_another_runtime_exclude_each_other() -> None:
    settings = RuntimeSettings(runtime="openvino", compiler="eager")
    with pytest.raises(SettingsError):
        decide_runtime(random_network(), CPU, settings, "sha256:0")


def test_auto_with_a_compiler_is_torch_and_imports_no_other_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eulerlora.nn.runtime.entry_points", None)
    settings = RuntimeSettings(runtime="auto", compiler="eager")
    decision = decide_runtime(random_network(), CPU, settings, "sha256:0")
    assert decision.runtime.name == "torch"
    assert "compiler" in decision.reason


@pytest.mark.parametrize(
    ("times_ms", "name"), [((2.0, 1.0), "openvino"), ((1.0, 0.95), "torch"), ((1.0, 2.0), "torch")]
)
def test_auto_is_the_faster_runtime_and_torch_in_a_draw(
    times_ms: tuple[float, float], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora.precision._pass_times_ms", lambda *_: times_ms)
    decision = decided(random_network(), "auto")
    assert decision.runtime.name == name
    by_openvino, by_torch = (f"{time_ms:.2f} ms" for time_ms in reversed(times_ms))
    assert f"{by_openvino} of CPU by openvino and {by_torch} by torch" in decision.reason
    assert ("90%" in decision.reason) == (name == "torch")


@pytest.mark.parametrize(
    ("runtime", "times_ms", "freed"),
    [("openvino", None, True), ("auto", (2.0, 1.0), True), ("auto", (1.0, 2.0), False)],
)
def test_torch_does_not_keep_the_blocks_of_a_chosen_graph(
    runtime: RuntimeChoice,
    times_ms: tuple[float, float] | None,
    freed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eulerlora.precision._pass_times_ms", lambda *_: times_ms)
    network = random_network()
    decided(network, runtime)
    for name, weight in network.named_parameters():
        is_of_block = name.startswith(("blocks.", "backbone.encoder.layers."))
        assert weight.is_meta == (freed and is_of_block), name


def test_both_runtimes_are_timed() -> None:
    reason = decided(random_network(), "auto").reason
    times_ms = [float(text) for text in re.findall(r"([\d.]+) ms", reason)]
    assert len(times_ms) == 2
    assert all(time_ms > 0 for time_ms in times_ms)


def test_runtimes_are_timed_on_the_threads_that_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", None)  # would be changed for one of them only
    assert "ms of CPU" in decided(random_network(), "auto").reason


def test_without_the_package_auto_is_torch_and_a_choice_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "eulerlora.plugins.openvino_runtime", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", None)
    decision = decided(random_network(), "auto")
    assert decision.runtime.name == "torch"
    with pytest.raises(SettingsError, match="openvino") as raised:
        decided(random_network(), "openvino")
    assert "pip install 'eulerlora[openvino]'" in str(raised.value)


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("Exception from src/core.cpp:1:\n  not supported\n")


@pytest.mark.parametrize(
    "step", ["torch.jit.trace", "eulerlora.plugins.openvino_runtime._compiled"]
)
def test_where_a_graph_cannot_be_made_auto_is_torch_and_a_choice_is_an_error_of_one_line(
    step: str, cache: Path, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(random_network(), "auto")  # imports the module
    monkeypatch.setattr(step, fail)
    network = random_network()
    decision = decided(network, "auto", "sha256:3")
    assert decision.runtime.name == "torch"
    assert decision.reason.endswith("RuntimeError: Exception from src/core.cpp:1: not supported")
    rows, draws = Rows.of([1, 1, 1], 2), network.draw_rows([Draw()] * 3)
    expected = random_network()(images, rows, draws)
    torch.testing.assert_close(decision.runtime(images, rows, draws), expected)
    with pytest.raises(SettingsError, match="not supported"):
        decided(random_network(), "openvino", "sha256:3")


def test_a_library_that_cannot_be_loaded_leaves_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without one of its shared objects."""
    message = "libopenvino.so: cannot open shared object file"
    (tmp_path / "openvino.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in list(sys.modules):
        if name.split(".")[0] == "openvino" or name == "eulerlora.plugins.openvino_runtime":
            monkeypatch.delitem(sys.modules, name)
    decision = decided(random_network(), "auto")
    assert decision.runtime.name == "torch"
    assert message in decision.reason
    assert sys.modules.get("absl", sys) is not None  # hidden during the import only


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EULERLORA_CACHE", str(tmp_path))
    return tmp_path / "openvino"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each network that is traced."""
    calls: list[object] = []
    trace = torch.jit.trace

    def counted(module: nn.Module, *args: Any, **options: Any) -> object:
        calls.append(module)
        return trace(module, *args, **options)

    monkeypatch.setattr(torch.jit, "trace", counted)
    return calls


def test_a_graph_is_kept_for_each_digest(cache: Path, traces: list[object]) -> None:
    for digest in ("sha256:0", "sha256:0", "sha256:1"):
        decided(random_network(), "openvino", digest)
    assert len(traces) == 2
    assert len(list(cache.iterdir())) == 2


def test_a_new_graph_has_its_weights_in_pages_of_its_file(cache: Path) -> None:
    runtime = decided(random_network(), "openvino").runtime
    (weights,) = cache.glob("*/*.bin")
    assert str(weights) in Path("/proc/self/maps").read_text()
    assert runtime.name == "openvino"


@pytest.mark.parametrize("damage", ["truncated", "missing", "other weights"])
def test_a_damaged_graph_is_made_anew(damage: str, cache: Path, traces: list[object]) -> None:
    decided(random_network(), "openvino")
    (weights,) = cache.glob("*/*.bin")
    content = weights.read_bytes()
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(content[:100] if damage == "truncated" else content[::-1])
    decision = decided(random_network(), "openvino")
    assert decision.runtime.name == "openvino"
    assert len(traces) == 2
    assert weights.read_bytes() == content


def test_a_damaged_compiled_graph_is_compiled_anew(cache: Path, traces: list[object]) -> None:
    decided(random_network(), "openvino")
    (compiled,) = cache.glob("*/*.blob")
    content = compiled.read_bytes()
    compiled.write_bytes(content[: len(content) // 2])
    assert decided(random_network(), "openvino").runtime.name == "openvino"
    assert len(compiled.read_bytes()) == len(content)
    assert len(traces) == 1


def test_a_cache_that_cannot_be_written_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("")  # where the folder would be
    assert decided(random_network(), "openvino").runtime.name == "openvino"


def test_old_graphs_are_removed(cache: Path) -> None:
    for old in range(10):
        folder = cache / str(old)
        folder.mkdir(parents=True)
        os.utime(folder, (old, old))
    decided(random_network(), "openvino")
    remaining = {path.name for path in cache.iterdir()}
    assert len(remaining) == 8
    assert remaining >= {str(old) for old in range(3, 10)}


def test_a_graph_with_other_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOLERANCES, "float32", -1.0)
    with pytest.raises(SettingsError, match="torch's probabilities"):
        decided(random_network(), "openvino", "sha256:2")
    assert decided(random_network(), "auto", "sha256:2").runtime.name == "torch"


TELEMETRY = """
class Telemetry:
    def __init__(self, *args, **options): raise SystemExit("telemetry")
"""
NO_NETWORK = """
import sys
def refuse(event, _):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        sys.exit(event)
sys.addaudithook(refuse)
from eulerlora import EulerLoRA
model = EulerLoRA.load(sys.argv[1], "cpu", runtime="openvino")
print(model.runtime.name)
"""


def test_nothing_is_sent_where_openvino_telemetry_is_installed(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    package = tmp_path / "openvino_telemetry"
    package.mkdir()
    (package / "__init__.py").write_text(TELEMETRY)
    (package / "backend.py").write_text("backend_ga4 = None")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "EULERLORA_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, checkpoint_folder],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("openvino\n", 0), done.stderr


SIGNAL = """
import os, signal, sys
from eulerlora import EulerLoRA
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
models = [EulerLoRA.load(sys.argv[1], "cpu", runtime="openvino") for _ in range(2)]
while models:
    del models[0]
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_a_process_handles_signals_after_its_models_are_freed(checkpoint_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL, checkpoint_folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("handled\n", 0), done.stderr


def test_its_import_adds_no_handler_that_closes_stderr() -> None:
    """Also after tensorboard has imported absl; setting up a log then closes pytest's stderr."""
    script = (
        "import sys, absl\n"
        "import eulerlora.plugins.openvino_runtime\n"
        "assert sys.modules['absl'] is absl\n"
        "assert 'absl.logging' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
