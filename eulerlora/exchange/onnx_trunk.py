"""The tensors of a DINOv2 trunk inside an ONNX file that torch exported.

The TorchScript exporter of torch keeps the names of biases, norms and factors, which are those of
transformers' `Dinov2Model`. It folds the transposed weights of linear layers and the position
embeddings into constants without a name: a weight's name follows from the path of its node.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eulerlora_client.errors import SettingsError

Graph = Any
"""`onnx.GraphProto`; the package is optional."""
Constants = dict[str, np.ndarray[Any, Any]]

CLASS_TOKEN = "embeddings.cls_token"
POSITION_EMBEDDINGS = "embeddings.position_embeddings"
PATCHES = "embeddings.patch_embeddings.projection.weight"
HEAD_WIDTH = 64
"""Of every published DINOv2; the file does not state the number of heads."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The input normalisation of DINOv2, which is outside of the network."""


def trunk_tensors(content: bytes) -> dict[str, Tensor]:
    """Returns the trunk's tensors as float32, with transformers' names.

    content: of an ONNX file; data outside of it is not read. What follows the trunk, such as a
    decoder, is left out. Raises SettingsError without the package onnx, for other content, and for
    a file without such a trunk.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError("expected the package onnx; pip install 'eulerlora[onnx]'") from error
    try:
        graph = onnx.load_model_from_string(content).graph
        constants = {t.name: np.asarray(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    except Exception as error:  # protobuf has its own errors
        raise SettingsError("expected an ONNX file with its weights inside") from error
    named = [name for name in constants if name.endswith(CLASS_TOKEN)]
    if len(named) != 1:
        raise SettingsError(f"expected one tensor {CLASS_TOKEN} of a DINOv2, got {len(named)}")
    prefix = named[0].removesuffix(CLASS_TOKEN)
    folded = {
        **constants,
        **_linear_weights(graph, constants),
        **_positions(graph, constants, prefix),
    }
    return {
        name.removeprefix(prefix): torch.tensor(value, dtype=torch.float32)
        for name, value in folded.items()
        if name.startswith((f"{prefix}embeddings.", f"{prefix}encoder.", f"{prefix}layernorm."))
    }


def trunk_config(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns what transformers' `config.json` would state of the trunk. Raises SettingsError."""
    first = "encoder.layer.0.mlp.fc1.weight"
    missing = [name for name in (PATCHES, POSITION_EMBEDDINGS, first) if name not in tensors]
    if missing:
        raise SettingsError(f"expected tensors of a DINOv2, got none for {', '.join(missing)}")
    width, _, patch_size, _ = tensors[PATCHES].shape
    blocks = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
    side = round((tensors[POSITION_EMBEDDINGS].shape[1] - 1) ** 0.5)
    return {
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "mlp_ratio": len(tensors[first]) / width,
        "patch_size": patch_size,
        "image_size": side * patch_size,
    }


def _linear_weights(graph: Graph, constants: Constants) -> Constants:
    """Returns the weights of linear layers by name; the graph multiplies by their transposes."""
    return {
        f"{node.name.strip('/').removesuffix('/MatMul').replace('/', '.')}.weight": constants[
            node.input[1]
        ].T
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in constants
    }


def _positions(graph: Graph, constants: Constants, prefix: str) -> Constants:
    """Returns the position embeddings, of which the graph reshapes those of the patches, to
    interpolate them, and then prepends that of the class token.
    """
    path = f"/{prefix.replace('.', '/')}embeddings/"
    parts = {
        node.op_type: constants[node.input[0]]
        for node in graph.node
        if node.name.startswith(path)
        and node.op_type in ("Concat", "Reshape")
        and node.input[0] in constants
    }
    if len(parts) < 2:
        return {}
    return {
        f"{prefix}{POSITION_EMBEDDINGS}": np.concatenate(
            [parts["Concat"], parts["Reshape"]], axis=1
        )
    }
