"""Every way in which the folder of a tiny checkpoint can be wrong."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save_file
from torch import Tensor

Apply = Callable[[Path], object]

ADAPTERS, BACKBONE, CONFIG = "adapters.safetensors", "backbone.safetensors", "config.json"
IMAGE_FILE, EXPECTED_FILE = "known_answer.png", "known_answer.json"
NORM = "encoder.ln.weight"


class Damage(NamedTuple):
    """Which file is found to be wrong, why, and what has been done to the folder."""

    file: str
    reason: str
    apply: Apply


def truncated(name: str) -> Apply:
    """Cuts a file in half."""
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def removed(name: str) -> Apply:
    """Removes a file."""
    return lambda folder: (folder / name).unlink()


def pickled(name: str) -> Apply:
    """Writes a file's tensors as torch does, in a pickle."""
    return lambda folder: torch.save(load((folder / name).read_bytes()), folder / name)


def repacked(name: str, change: Callable[[dict[str, Tensor]], object]) -> Apply:
    """Changes the tensors of a file and leaves the digests in config.json as they are."""

    def apply(folder: Path) -> None:
        tensors = load((folder / name).read_bytes())
        change(tensors)
        save_file(tensors, folder / name)

    return apply


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Apply:
    """Changes a JSON file as a person with an editor would."""

    def apply(folder: Path) -> None:
        fields = json.loads((folder / name).read_text())
        change(fields)
        (folder / name).write_text(json.dumps(fields))

    return apply


def overlapping(folder: Path) -> None:
    """Lets two tensors of the adapters begin at the same byte."""
    file = folder / ADAPTERS
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    first, second, *_ = (name for name in header if name != "__metadata__")
    header[second]["data_offsets"][0] = header[first]["data_offsets"][0]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def twice(folder: Path) -> None:
    """Gives the adapters a second tensor with the name of the first."""
    file = folder / ADAPTERS
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length].rstrip(), content[8 + length :]
    name = next(name for name in json.loads(header) if name != "__metadata__")
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    text = header[:-1] + b"," + json.dumps({name: entry})[1:].encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(4))


def swapped(fields: dict[str, Any]) -> None:
    """Other answers than the model's, well-formed."""
    fields["answers"][0]["probabilities"].reverse()


DAMAGES = {
    "adapters cut off": Damage(ADAPTERS, "not a readable", truncated(ADAPTERS)),
    "backbone cut off": Damage(BACKBONE, "not a readable", truncated(BACKBONE)),
    "no adapters": Damage(ADAPTERS, "not a readable", removed(ADAPTERS)),
    "no backbone": Damage(BACKBONE, "not a readable", removed(BACKBONE)),
    "overlapping tensors": Damage(ADAPTERS, "not a readable", overlapping),
    "a tensor twice": Damage(ADAPTERS, "not a readable", twice),
    "a pickle in disguise": Damage(ADAPTERS, "not a readable", pickled(ADAPTERS)),
    "a backbone in a pickle": Damage(BACKBONE, "not a readable", pickled(BACKBONE)),
    "not finite": Damage(
        ADAPTERS,
        "heads.bias has NaN",
        repacked(ADAPTERS, lambda t: t["heads.bias"].fill_(torch.nan)),
    ),
    "wrong shape": Damage(
        ADAPTERS,
        "heads.bias has shape [2, 4], wanted [2, 3]",
        repacked(ADAPTERS, lambda t: t.update({"heads.bias": torch.ones(2, 4)})),
    ),
    "wrong dtype": Damage(
        ADAPTERS,
        "heads.bias has dtype torch.int32",
        repacked(ADAPTERS, lambda t: t.update({"heads.bias": torch.ones(2, 3).int()})),
    ),
    "missing tensor": Damage(
        ADAPTERS, "heads.bias is missing", repacked(ADAPTERS, lambda t: t.pop("heads.bias"))
    ),
    "one tensor too many": Damage(
        ADAPTERS, "x does not belong", repacked(ADAPTERS, lambda t: t.update(x=torch.ones(1)))
    ),
    "other adapters": Damage(
        ADAPTERS, "SHA-256", repacked(ADAPTERS, lambda t: t["heads.bias"].add_(0.01))
    ),
    "another backbone": Damage(
        BACKBONE, "SHA-256", repacked(BACKBONE, lambda t: t[NORM].mul_(1.1))
    ),
    "wrong rank": Damage(
        ADAPTERS, "has shape", edited(CONFIG, lambda c: c["adapters"]["settings"].update(rank=5))
    ),
    "broken config": Damage(CONFIG, "JSON", truncated(CONFIG)),
    "no config": Damage(CONFIG, "cannot be read", removed(CONFIG)),
    "no known answer": Damage(EXPECTED_FILE, "cannot be read", removed(EXPECTED_FILE)),
    "no picture": Damage(IMAGE_FILE, "cannot be read", removed(IMAGE_FILE)),
    "another picture": Damage(IMAGE_FILE, "SHA-256", truncated(IMAGE_FILE)),
    "a wrong known answer": Damage(
        EXPECTED_FILE, "the known answer is wrong: mode det", edited(EXPECTED_FILE, swapped)
    ),
}
