"""The study of maps: curves between the whole and the hidden picture, also after a stop."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from eulerlora_lab import attribution
from tests.training.data.public_layouts import ham10000

ORDERS = ("hidden-16", "hidden-49", "gradient", "rollout", "random")


def test_curves_join_the_whole_and_the_hidden_picture_and_continue_after_a_stop(
    program: Callable[..., str], checkpoint_folder: Path, tmp_path: Path
) -> None:
    ham10000(tmp_path / "data")
    words = ["--data", tmp_path / "data", "--checkpoint", checkpoint_folder, "--lesions", "3"]
    words += ["--runtime", "torch"]
    program(attribution.main, *words, "--out", tmp_path)
    with np.load(tmp_path / "attribution.npz") as arrays:
        stored = dict(arrays)
    curves = np.stack([stored[name] for name in ORDERS], axis=1)  # (lesion, map, hiding, 2, steps)
    deletion, insertion = curves[..., 0, :], curves[..., 1, :]
    whole, hidden = deletion[..., 0], deletion[..., -1]
    assert (whole == whole[:, :1, :1]).all()
    assert (hidden == hidden[:, :1]).all()
    assert (insertion[..., -1] == whole).all()
    assert (insertion[..., 0] == hidden).all()
    assert not np.isclose(hidden, whole).all()

    first = {name: values[:2] for name, values in stored.items()}
    np.savez(tmp_path / "attribution.npz", allow_pickle=False, **first)
    (tmp_path / "attribution.json").unlink()
    program(attribution.main, *words, "--out", tmp_path)
    with np.load(tmp_path / "attribution.npz") as arrays:
        assert {name: values.tolist() for name, values in arrays.items()} == {
            name: values.tolist() for name, values in stored.items()
        }
    assert json.loads((tmp_path / "attribution.json").read_text())["lesions"] == 3
