"""Damages to the folder of the tiny checkpoint.

tests/eulerlora/checkpoint/test_files.py applies all damages of `LOADING`; tests of other packages
take single ones to test how they handle the error. test_weights.py and test_config.py beside it
cover further damages of a file.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save_file
from torch import Tensor

Apply = Callable[[Path], object]

ADAPTERS, BACKBONE, CONFIG = "adapters.safetensors", "backbone.safetensors", "config.json"
EXPECTED_FILE = "known_answer.json"
NORM = "encoder.ln.weight"


class Damage(NamedTuple):
    """The file that the error names, a part of the error's reason, and the damage itself."""

    file: str
    reason: str
    apply: Apply


def truncated(name: str) -> Apply:
    """Truncates a file to half its size."""
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def removed(name: str) -> Apply:
    """Removes a file."""
    return lambda folder: (folder / name).unlink()


def overwritten(name: str, content: bytes) -> Apply:
    """Replaces the content of a file."""
    return lambda folder: (folder / name).write_bytes(content)


def repacked(name: str, change: Callable[[dict[str, Tensor]], object]) -> Apply:
    """Changes the tensors of a file, without the digests in config.json."""

    def apply(folder: Path) -> None:
        tensors = load((folder / name).read_bytes())
        change(tensors)
        save_file(tensors, folder / name)

    return apply


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Apply:
    """Changes the content of a JSON file."""

    def apply(folder: Path) -> None:
        fields = json.loads((folder / name).read_text())
        change(fields)
        (folder / name).write_text(json.dumps(fields))

    return apply


def reverse_probabilities(fields: dict[str, Any]) -> None:
    """Replaces the stored probabilities by valid ones that the model does not return."""
    fields["answers"][0]["probabilities"].reverse()


def config_edited(change: Callable[[dict[str, Any]], object]) -> Apply:
    return edited(CONFIG, change)


def number(group: str, name: str, value: int) -> Apply:
    """Changes a number of the backbone or of the adapters."""
    return config_edited(lambda fields: fields[group]["settings"].update({name: value}))


LARGEST = {"width": 16_384, "mlp_width": 65_536, "layers": 256, "heads": 2}
"""Numbers of a backbone that are each within their bounds."""

LOADING = {
    "no folder": Damage(".", "no such folder", shutil.rmtree),
    "no config": Damage(CONFIG, "cannot be read", removed(CONFIG)),
    "empty config": Damage(CONFIG, "JSON", overwritten(CONFIG, b"")),
    "config not UTF-8": Damage(CONFIG, "JSON", overwritten(CONFIG, b"\xff\xfe{}")),
    "unknown key": Damage(CONFIG, "alpha", config_edited(lambda c: c.update(alpha=1))),
    "unknown backbone": Damage(
        CONFIG, "ResNet.V1", config_edited(lambda c: c["backbone"].update(published="ResNet.V1"))
    ),
    "no adapters": Damage(ADAPTERS, "not a readable", removed(ADAPTERS)),
    "adapters cut off": Damage(ADAPTERS, "not a readable", truncated(ADAPTERS)),
    "other adapters": Damage(
        ADAPTERS, "SHA-256", repacked(ADAPTERS, lambda t: t["heads.bias"].add_(0.01))
    ),
    "other rank": Damage(
        ADAPTERS,
        "expected shape",
        config_edited(lambda c: c["adapters"]["settings"].update(rank=5)),
    ),
    "other number of classes": Damage(
        ADAPTERS, "expected shape", config_edited(lambda c: c["classes"].pop())
    ),
    "backbone cut off": Damage(BACKBONE, "not a readable", truncated(BACKBONE)),
    "another backbone": Damage(
        BACKBONE, "SHA-256", repacked(BACKBONE, lambda t: t[NORM].mul_(1.1))
    ),
    "more layers": Damage(
        BACKBONE,
        "missing tensor",
        config_edited(lambda c: c["backbone"]["settings"].update(layers=3)),
    ),
    **{
        f"{group}.{name} of {value:g}": Damage(
            CONFIG,
            f"{group}.settings.{name}: expected a number of at most",
            number(group, name, value),
        )
        for group, name, value in (
            ("backbone", "layers", 10**9), ("backbone", "width", 10**12),
            ("backbone", "mlp_width", 10**9), ("backbone", "image_size", 2**40),
            ("adapters", "rank", 10**9), ("adapters", "adapters", 10**9),
            ("adapters", "steps", 10**9),
        )
    },
    "weights that no machine can hold": Damage(
        CONFIG,
        "backbone: expected at most 8,589,934,592 weights, got",
        config_edited(lambda c: c["backbone"]["settings"].update(LARGEST)),
    ),
    "tokens that no machine can hold": Damage(
        CONFIG,
        "backbone: expected at most 16,385 tokens, got 16,777,217",
        config_edited(lambda c: c["backbone"]["settings"].update(patch_size=1, image_size=4096)),
    ),
}  # fmt: skip
"""Damages that prevent loading."""

DAMAGES = LOADING | {
    "no known answer": Damage(EXPECTED_FILE, "cannot be read", removed(EXPECTED_FILE)),
    "a wrong known answer": Damage(
        EXPECTED_FILE,
        "the known answer is wrong: mode det",
        edited(EXPECTED_FILE, reverse_probabilities),
    ),
}
"""All damages, with those that only the known answer reveals."""
