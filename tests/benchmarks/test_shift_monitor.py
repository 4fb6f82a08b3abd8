"""The replay of predictions through the shift monitor."""

import csv
import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.shift_monitor import main, replay
from eulerlora.checkpoint.files import read_config
from service.telemetry.shift_monitor import MSP, Reference


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """400 pictures like the calibration images, 60 with a low MSP, and other modes."""
    path = tmp_path / "predictions.csv.gz"
    columns = ["set", "mode", "samples", "p_bkl", "p_mel", "p_nv", "msp", "feature_distance"]
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for index in range(400):
            msp = 0.4 if index % 25 == 0 else 0.9
            writer.writerow(["test", "stoch", 4, 0.0, 0.1, 0.9, msp, ""])
            writer.writerow(["test", "det", 1, 0.0, 0.1, 0.9, 0.1, ""])
        writer.writerows([["other", "stoch", 4, 0.0, 0.7, 0.3, 0.4, ""]] * 60)
    return path


def test_the_table_has_a_row_per_set_of_the_chosen_mode(predictions, checkpoint_folder) -> None:
    arguments = [str(predictions), "--checkpoint", str(checkpoint_folder), "--orders", "3"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    rows = [line.split(" | ") for line in done.stdout.splitlines()[4:]]
    assert [row[:5] for row in rows] == [
        ["| test", "400", "", "0.040", "0 of 3"],
        ["| other", "60", "", "1.000", "3 of 3"],
    ]


def test_options_without_thresholds_are_refused(predictions, checkpoint_folder) -> None:
    arguments = [str(predictions), "--checkpoint", str(checkpoint_folder), "--samples", "16"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "no thresholds for stoch with 16 samples" in done.output


def test_a_file_without_the_mode_is_refused(tmp_path, checkpoint_folder) -> None:
    path = tmp_path / "predictions.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("set,mode,samples\ntest,det,1\n")
    done = CliRunner().invoke(main, [str(path), "--checkpoint", str(checkpoint_folder)])
    assert done.exit_code == 1
    assert "no predictions in stoch with 4 samples" in done.output


def test_the_alarm_is_counted_in_pictures(checkpoint_folder) -> None:
    threshold = read_config(checkpoint_folder).threshold("stoch", 4)
    assert threshold is not None
    reference = Reference.of(threshold)
    flagged, usual = reference.events(0.1, None, 0), reference.events(0.9, None, 0)
    numbers = set(replay([flagged] * 50, reference, 2).pictures_to_alarm)
    assert len(numbers) == 1 and numbers < set(range(2, 50))
    assert replay([usual] * 50, reference, 2).pictures_to_alarm == (None, None)
    assert flagged[MSP] == 0
