"""A network run by OpenVINO on a CPU (extra `openvino`, entry point `eulerlora.runtimes`).

The blocks of a network become one graph, (patches, image and adapter of each row, positions of the
rows, coefficients) -> (pooled, features), for any number of rows and images and for every mode.
Torch computes what is small: the embeddings of the patches, in float32 in any precision, and the
heads, which may be those of any method.

A pass divides its rows among streams, which wait for each other only at its end; threads that share
operations wait for the slowest one after each of them. There are as many streams as adapters, so
that a single image has rows for all of them, or fewer if there are fewer threads.

A graph is traced and converted once and kept in the user's cache folder. Whatever its origin, it is
compared with torch before it is used.
"""

import hashlib
import inspect
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Generator, Tensor, nn

import eulerlora.nn
from eulerlora.checkpoint.files import TOLERANCES
from eulerlora.nn.method import COEFFICIENTS, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer, NetworkOutput, remove_key_biases
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.errors import EulerLoRAError, SettingsError
from eulerlora_contract.output_files import new_folder
from eulerlora_contract.sampling import Precision

# With the first, the import of openvino and every conversion would be reported to its makers. It
# would import the second, whose handler of logs closes the stderr of this moment.
_modules: dict[str, Any] = sys.modules
_absl = _modules.get("absl")
for _hidden in ("openvino_telemetry", "absl"):
    _modules[_hidden] = None
try:
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
finally:
    if _absl is None:
        del _modules["absl"]
    else:
        _modules["absl"] = _absl

_CORE = openvino.Core()
"""The only one, never freed. Each gives its thread a stack for signals and unmaps it in the end; if
another came later, the thread may get it back, and the next signal ends the process.
"""
_GRAPH_FILE = "graph.xml"
_KEPT_GRAPHS = 8
"""Number of graphs in the cache; the oldest ones are removed."""
_PRECISIONS: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16"}
_TRACED = (Draw(mode="stoch", samples=2, seed=1), Draw(), Draw())
"""Draws of the images of the trace."""
_COMPARED = (Draw(), Draw(mode="stoch", seed=2))
"""Those of the comparison with torch; the numbers of images and rows are others."""


class OpenVinoRuntime(Runtime):
    """Runs a network on a CPU by OpenVINO.

    Args:
        network: In float32; its method draws coefficients for the blocks, and nothing else.
        device: The CPU.
        settings: Without a compiler.
        digest: Of the network's checkpoint.

    Raises:
        SettingsError: For another method, and a graph that gives other probabilities than torch.
    """

    name = "openvino"

    def __init__(
        self,
        network: AdaptedVisionTransformer,
        device: torch.device,
        settings: RuntimeSettings,
        digest: str,
    ) -> None:
        drawn = sorted(network.draw_rows(_TRACED).blocks)
        if drawn != [COEFFICIENTS]:
            raise SettingsError(
                f"runtime openvino: expected draws of the blocks [{COEFFICIENTS!r}], got {drawn}"
            )
        if settings.precision == "bfloat16":
            remove_key_biases(network)
        self._threads = torch.get_num_threads()
        self._streams = min(self._threads, network.settings.adapters)
        self._requests: list[list[openvino.InferRequest]] = []  # of passes that have ended
        self._graph = _checked_graph(network, settings.precision, digest, self._streams)
        super().__init__(network, device, settings)

    def free_unread_weights(self) -> None:
        """Frees the blocks, which the graph has packed in its own format."""
        for blocks in (self.network.backbone.encoder.layers, self.network.blocks):
            blocks.to("meta")

    def _pass(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        try:
            requests = self._requests.pop()
        except IndexError:
            requests = [self._graph.create_infer_request() for _ in range(self._streams)]
        # Another pass may run on the threads that this one may not use.
        streams = max(1, self._streams * torch.get_num_threads() // self._threads)
        output = _outputs(self.network, requests[:streams], images, rows, draws)
        self._requests.append(requests)  # not after an error, when some may still run
        return output


class _Blocks(nn.Module):
    """The blocks of a network, of tensors."""

    def __init__(self, network: AdaptedVisionTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        patches: Tensor,
        image: Tensor,
        adapter: Tensor,
        positions: Tensor,
        coefficients: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Arguments as in `AdaptedVisionTransformer.encode`."""
        rows = Rows(image, adapter, (), positions)
        draws = RowDraws.of_coefficients(coefficients)
        pooled, features = self.network.encode(patches, rows, draws)
        return pooled, features


def _graph_inputs(patches: Tensor, rows: Rows, draws: RowDraws) -> tuple[Tensor, ...]:
    """The arguments of `_Blocks`."""
    return patches, rows.image, rows.adapter, rows.positions, draws.blocks[COEFFICIENTS]


def _outputs(
    network: AdaptedVisionTransformer,
    requests: Sequence[openvino.InferRequest],
    images: Tensor,
    rows: Rows,
    draws: RowDraws,
) -> NetworkOutput:
    """Runs a part of the rows by each request, at the same time."""
    patches = network.patches(images)
    parts = list(rows.divided(len(requests)))
    used = requests[: len(parts)]
    for request, part in zip(used, parts, strict=True):
        inputs = _graph_inputs(patches[part.images], part.renumbered, draws.rows(part.rows))
        arrays = [np.ascontiguousarray(values.detach().numpy()) for values in inputs]
        request.start_async(arrays, share_inputs=True)
    results = []
    for request in used:
        request.wait()
        results.append([torch.from_numpy(output.data) for output in request.output_tensors])
    pooled, features = map(torch.cat, zip(*results, strict=True))
    return NetworkOutput(network.heads(pooled, rows.adapter, draws.head), features)


def _checked_graph(
    network: AdaptedVisionTransformer, precision: Precision, digest: str, streams: int
) -> openvino.CompiledModel:
    """The compiled graph of a network, of the cache or converted.

    Raises SettingsError if a converted graph gives other probabilities than torch.
    """
    folder = _cache_folder(network, precision, digest)
    kept = folder / _GRAPH_FILE
    if kept.is_file():
        with suppress(RuntimeError):  # of a damaged file
            graph = _compiled(kept, precision, streams)
            if _fault(network, graph, precision) is None:
                return graph
    shutil.rmtree(folder, ignore_errors=True)
    converted = _converted(network)
    _store(converted, folder)
    # The constants of a file are its pages, not torch's weights.
    graph = _compiled(kept if kept.is_file() else converted, precision, streams)
    fault = _fault(network, graph, precision)
    if fault is not None:
        shutil.rmtree(folder, ignore_errors=True)
        raise SettingsError(f"runtime openvino: {fault}; choose runtime torch")
    return graph


def _converted(network: AdaptedVisionTransformer) -> openvino.Model:
    """The blocks of a network as a graph.

    `openvino.convert_model` would do the same, but report it if the caller has imported
    openvino-telemetry.
    """
    images, rows, draws = _inputs(network, _TRACED)
    inputs = _graph_inputs(network.patches(images), rows, draws)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of rows is no constant of the trace: `_fault`
        traced = torch.jit.trace(_Blocks(network).eval(), inputs, check_trace=False)
        decoder = TorchScriptPythonDecoder(traced)  # the graph does not keep it alive
        frontend = FrontEndManager().load_by_framework("pytorch")
        graph = frontend.convert(frontend.load(decoder))
    graph.reshape(
        {
            graph.input(index): [-1, -1] if values is rows.positions else [-1, *values.shape[1:]]
            for index, values in enumerate(inputs)
        }
    )
    return graph


def _compiled(
    graph: openvino.Model | Path, precision: Precision, streams: int
) -> openvino.CompiledModel:
    """Compiles a graph; one of a file once, and what was compiled is kept beside it."""
    settings = {
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": _PRECISIONS[precision],
        "ENABLE_CPU_PINNING": False,  # the kernel moves threads away from busy cores
    }
    if isinstance(graph, Path):
        settings |= {"CACHE_DIR": str(graph.parent), "CACHE_MODE": "OPTIMIZE_SIZE"}
    return _CORE.compile_model(graph, "CPU", settings)


@torch.no_grad()
def _fault(
    network: AdaptedVisionTransformer, graph: openvino.CompiledModel, precision: Precision
) -> str | None:
    """How the probabilities of a graph differ from those of torch in float32, or None."""
    arguments = _inputs(network, _COMPARED)
    expected = network(*arguments).softmax(dim=-1)
    outputs = _outputs(network, [graph.create_infer_request()], *arguments)
    difference = (outputs.logits.softmax(dim=-1) - expected).abs().max().item()
    tolerance = TOLERANCES[precision]
    if difference <= tolerance:
        return None
    return (
        f"expected torch's probabilities within {tolerance}, got a difference of {difference:.2g}"
    )


def _inputs(
    network: AdaptedVisionTransformer, draws: tuple[Draw, ...]
) -> tuple[Tensor, Rows, RowDraws]:
    """Random images with a draw for each, and their rows."""
    size = network.backbone.settings.image_size
    images = torch.rand(len(draws), 3, size, size, generator=Generator().manual_seed(0))
    rows = Rows.of([draw.count for draw in draws], network.settings.adapters)
    return images, rows, network.draw_rows(draws)


def _cache_folder(network: AdaptedVisionTransformer, precision: Precision, digest: str) -> Path:
    """The folder of a graph, in EULERLORA_CACHE or the user's cache folder.

    Its name depends on all that the graph does: checkpoint, code and versions of the libraries.
    """
    sources = [*Path(*eulerlora.nn.__path__).glob("*.py"), Path(__file__)]
    with suppress(TypeError, OSError):  # of a class without a file
        sources.append(Path(inspect.getfile(type(network.method))))
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(sources)]
    versions = [openvino.__version__, torch.__version__]
    # A graph of fewer adapters would read memory outside of its tensors.
    parts = digest, network.settings, precision, versions, digests
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    return (
        Path(os.environ.get("EULERLORA_CACHE") or user_cache_path("eulerlora")) / "openvino" / key
    )


def _store(graph: openvino.Model, folder: Path) -> None:
    """Writes a graph to a new folder; without effect if the cache cannot be written."""
    with suppress(EulerLoRAError, OSError), new_folder(folder) as partial:
        openvino.save_model(graph, partial / _GRAPH_FILE, compress_to_fp16=False)
    with suppress(OSError):
        by_age = sorted(
            (path for path in folder.parent.iterdir() if not path.name.startswith(".")),
            key=lambda path: path.stat().st_mtime,
        )
        for path in by_age[:-_KEPT_GRAPHS]:
            shutil.rmtree(path, ignore_errors=True)
