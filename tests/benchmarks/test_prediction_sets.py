"""`benchmarks.prediction_sets` measures labelled pictures of a folder."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from benchmarks.prediction_sets import main
from eulerlora.checkpoint.files import read_config, write_config
from eulerlora.scores.prediction_sets import PredictionSetCalibration


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Twelve noisy pictures with the local labels `mole` and `melanoma`."""
    noise = np.random.default_rng(0)
    for label, count in (("mole", 8), ("melanoma", 4)):
        (tmp_path / "labelled" / label).mkdir(parents=True)
        for index in range(count):
            pixels = noise.integers(0, 256, (36, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "labelled" / label / f"{index}.png")
    return tmp_path / "labelled"


def with_sets(folder: Path, thresholds: tuple[float, ...]) -> Path:
    sets = tuple(
        PredictionSetCalibration.model_validate({
            "coverage": 0.9, "mode": mode, "samples": samples, "sampler": "independent",
            "precision": "float32", "thresholds": thresholds, "unit": "image",
            "units": (20, 30, 40), "data": "squares", "data_sha256": "0" * 64,
        })
        for mode, samples in (("det", 1), ("stoch", 4))
    )  # fmt: skip
    write_config(folder, read_config(folder).model_copy(update={"prediction_sets": sets}))
    return folder


def test_the_tables_have_the_classes_of_the_pictures(checkpoint_copy: Path, labelled: Path) -> None:
    checkpoint = with_sets(checkpoint_copy, (0.0, 1.0, 0.0))
    arguments = ["--checkpoint", str(checkpoint), "--labelled", str(labelled),
                 "--class", "mole=nv", "--class", "melanoma=mel"]  # fmt: skip
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for title in ("det, 1", "stoch, 4"):
        assert title in done.output
    assert done.output.count("| mel | 4 | 1.000 [0.398, 1.000] (4/4) always | 1.00 |") == 2
    assert done.output.count("| nv | 8 | 0.000 [0.000, 0.369] (0/8) | 1.00 |") == 2
    ignored = CliRunner().invoke(main, [*arguments[:-2], "--ignore", "melanoma"])
    assert "| mel |" not in ignored.output


def test_one_source_of_pictures_is_required(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--checkpoint", str(tmp_path)])
    assert (done.exit_code, "expected one of --data and --labelled" in done.output) == (2, True)
