"""`eulerlora train`: interruptions, resumption, and errors."""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eulerlora_contract.printable import printable
from tests.full_disk import file_size_limit
from tests.program import refusal, run, succeed
from tests.training.conftest import set_options, write_recipe
from training.adaptation.train import state_file

TIMEOUT_S = 300
SHORT = ("data.path=train", "evaluation.ood=[]", "evaluation.calibrated=[1]")
STORED = (*SHORT, "training.state_every_s=0")

# Waits at a step of the training, or before the data are read, until its input ends.
WAITS = """
import sys
from eulerlora_contract.program import main
from training.adaptation import train
from training.adaptation.objective import AdapterObjective

step, draw = int(sys.argv.pop(1)), AdapterObjective.draw

def wait(*_arguments):
    print("waiting", flush=True)
    sys.stdin.read()

def draw_or_wait(objective, *arguments):
    if arguments[1] == step:
        wait()
    return draw(objective, *arguments)

AdapterObjective.draw = draw_or_wait
if step < 0:
    train.read_dataset = wait
main()
"""


def end(number: signal.Signals, waits_at: int, *arguments: str | Path) -> tuple[int, str]:
    """Signals the process group of a program that waits at a step; returns its status and stderr.

    A negative step is before the training. One thread, as in the tests' process: sums over several
    threads round differently.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(waits_at), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any(line == "waiting\n" for line in process.stdout)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=TIMEOUT_S)  # ends its input
    return process.returncode, errors


def stored_steps(out: Path) -> int:
    """The steps after which the state of the run in `out` was stored."""
    metadata = safe_open(state_file(out), "pt").metadata()
    return json.loads(metadata["progress"])["step"]


def test_ctrl_c_and_a_full_disk_end_a_run_and_its_state_continues_it(
    image_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = [
        "train", write_recipe(tmp_path), "--data", image_folder, "--out", out,
        "--track", "tensorboard", "--track-dir", tmp_path / "curves", *set_options(STORED),
    ]  # fmt: skip
    status, errors = end(signal.SIGINT, 3, *command)
    assert status == 128 + signal.SIGINT
    assert "no checkpoint was written" in errors
    assert len(errors.strip().splitlines()) == 1
    assert not out.exists()

    stored = state_file(out).read_bytes()
    with file_size_limit(len(stored) // 2):
        error = refusal(*command, "--resume")
    assert f"disk full (file too large) while writing {state_file(out)}" in error
    step = stored_steps(out)
    named = f"the state after step {step} is stored in {state_file(out)}; "
    assert f"{named}free" in error and f"{named}use --resume" in errors
    assert state_file(out).read_bytes() == stored
    assert not list(out.parent.glob(".*"))

    done = succeed(*command, "--resume")
    assert f"continuing after step {step}" in done.out
    points = EventAccumulator(str(tmp_path / "curves" / "run")).Reload().Scalars("step/loss")
    training = json.loads((out / "config.json").read_text())["provenance"]["training"]
    assert [point.step for point in points] == list(range(training["steps"]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_whose_group_is_signalled_resumes_to_the_weights_of_an_uninterrupted_one(
    recipe_file: Path, image_folder: Path, number: signal.Signals
) -> None:
    overrides = set_options((*STORED, "training.epochs=2", "training.workers=2"))
    whole, resumed = (recipe_file.parent / name for name in ("whole", "resumed"))

    def arguments(out: Path) -> list[str | Path]:
        return ["train", recipe_file, "--data", image_folder, "--out", out, *overrides]

    status, errors = end(number, 9, *arguments(resumed))  # in the second epoch
    assert stored_steps(resumed) > 0
    assert not resumed.exists()
    if number is signal.SIGTERM:
        assert status == 128 + number
        assert len(errors.strip().splitlines()) == 1
        assert f"stored in {state_file(resumed)}" in errors

    done = succeed(*arguments(resumed), "--resume")
    assert "continuing after step" in done.out
    assert not state_file(resumed).exists()
    assert run(*arguments(whole)).status == 0
    one, other = ((out / "adapters.safetensors").read_bytes() for out in (whole, resumed))
    assert one == other


def test_a_signal_before_the_first_step_ends_a_run_with_one_line(
    recipe_file: Path, image_folder: Path
) -> None:
    out = recipe_file.parent / "run"
    status, errors = end(signal.SIGTERM, -1, "train", recipe_file, "--data", image_folder,
                         "--out", out, *set_options(SHORT))  # fmt: skip
    assert status == 128 + signal.SIGTERM
    (line,) = errors.strip().splitlines()
    assert "interrupted; no checkpoint was written" in line


@pytest.mark.parametrize(
    ("function", "option", "message"),
    [
        ("read_dataset", "--restart", "interrupted; no checkpoint was written"),
        ("check_data", "--check", "interrupted\n"),
    ],
)
def test_a_signal_counts_where_compiled_code_replaces_its_exception(
    recipe_file: Path, image_folder: Path, function: str, option: str, message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def replace_exit(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:
            raise ValueError("could not determine the shape") from None

    monkeypatch.setattr(f"training.adaptation.train.{function}", replace_exit)
    out = recipe_file.parent / "run"
    done = run("train", recipe_file, "--data", image_folder, "--out", out, option)
    assert done.status == 128 + signal.SIGTERM
    assert done.err.startswith(f"eulerlora: {message}")


def test_a_non_finite_loss_ends_a_run_with_a_line_that_names_the_state(
    recipe_file: Path, image_folder: Path
) -> None:
    out = recipe_file.parent / "run"
    overrides = (*STORED, "training.learning_rate=1e30")
    error = refusal("train", recipe_file, "--data", image_folder, "--out", out,
                    *set_options(overrides))  # fmt: skip
    assert "at step 2 is nan; training stopped; no checkpoint was written" in error
    assert f"the state after step 2 is stored in {state_file(out)}" in error


def test_a_stored_state_is_continued_on_its_data_and_seed_only_or_discarded_by_a_flag(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(image_folder / "train", tmp_path / "data"))
    state = state_file(tmp_path / "run")
    command = ("train", recipe_file, "--data", data, "--out", tmp_path / "run", *set_options(
        ("evaluation.ood=[]", "training.state_every_s=0", "training.learning_rate=1e30")
    ))  # fmt: skip
    assert "step 2" in refusal(*command)
    stored = state.read_bytes()
    assert "--restart" in refusal(*command, status=2)
    assert run(*command, "--resume", "--restart").status == 2
    assert str(state) in refusal(*command, "--resume", "--seed", "9")

    picture = data / "red" / "03.png"
    before = picture.read_bytes()
    shutil.copy(image_folder / "other" / "0.png", picture)
    assert str(state) in refusal(*command, "--resume")
    picture.write_bytes(before)
    picture.rename(data / "blue" / "33.png")  # another label
    assert str(state) in refusal(*command, "--resume")
    (data / "blue" / "33.png").rename(picture)
    backbone = tmp_path / "backbone.safetensors"
    before = backbone.read_bytes()
    tensors, origin = load_file(backbone), safe_open(backbone, "pt").metadata()
    save_file({name: -tensor for name, tensor in tensors.items()}, backbone, origin)
    assert "backbone, which have changed" in refusal(*command, "--resume")
    backbone.write_bytes(before)
    assert state.read_bytes() == stored

    assert "is nan" in refusal(*command, "--resume")
    assert "step 2" in refusal(*command, "--restart")


def test_a_non_empty_output_folder_is_refused_before_training(
    recipe_file: Path, image_folder: Path
) -> None:
    out = recipe_file.parent / "full"
    out.mkdir()
    (out / "precious").write_text("content")
    command = ("train", recipe_file, "--data", image_folder, "--out", out, *set_options(SHORT))
    assert str(out) in refusal(*command)
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_a_check_refuses_what_a_training_refuses_and_writes_nothing(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    data, out = Path(shutil.copytree(image_folder, tmp_path / "data")), tmp_path / "run"
    command = ["train", recipe_file, "--data", data, *set_options(("evaluation.ood=[]",))]
    assert run(*command, "--check").status == 0

    broken = data / "test" / "blue" / "broken.png"
    broken.write_bytes(b"broken")
    done = run(*command, "--check")
    assert (done.status, "test/blue/broken.png" in done.out) == (1, True)
    broken.unlink()

    shutil.copy(data / "train" / "red" / "00.png", data / "test" / "red" / "copy.png")
    for options in (["--check"], ["--out", out]):
        done = run(*command, *options)
        assert done.status == 1
        shown = done.out if "--check" in options else done.err
        assert "train/red/00.png" in shown
        assert "test/red/copy.png (test, red)" in shown
    assert not out.exists()


def test_all_copies_of_a_set_are_listed_and_those_of_a_class_are_no_obstacle(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    data, table = Path(shutil.copytree(image_folder / "train", tmp_path / "data")), tmp_path / "c"
    for number in range(0, 20, 2):
        shutil.copy(data / "red" / f"{number:02}.png", data / "red" / f"copy{number}.png")
    command = ("train", recipe_file, "--data", data, *set_options(("evaluation.ood=[]",)))
    done = run(*command, "--check", "--copies", table)
    assert done.status == 0, done.err
    rows = list(csv.DictReader(table.open(encoding="utf-8-sig")))
    assert {row["other_file"] for row in rows} == {f"red/copy{n}.png" for n in range(0, 20, 2)}
    assert {row["found"] for row in rows} == {"same image twice in a part"}
    assert all(row["part"] == row["other_part"] for row in rows)
    assert all(f"copy{number}.png" in done.out for number in range(0, 20, 2))

    for number in range(3):
        shutil.copy(data / "blue" / f"{number:02}.png", data / "green" / f"copy{number}.png")
    done = run(*command, "--check", "--copies", table)
    rows = list(csv.DictReader(table.open(encoding="utf-8-sig")))
    assert (done.status, len(rows)) == (1, 13)  # each pair once, by its worst kind
    of_classes = [row for row in rows if row["found"] == "same image in two classes"]
    assert {frozenset((row["file"], row["other_file"])) for row in of_classes} == {
        frozenset((f"blue/{number:02}.png", f"green/copy{number}.png")) for number in range(3)
    }
    for row in of_classes:
        classes = [Path(row[file]).parent.name for file in ("file", "other_file")]
        assert [row["class"], row["other_class"]] == classes
    done = run(*command, "--out", tmp_path / "run")
    assert done.status == 1
    assert all(f"green/copy{number}.png" in done.out for number in range(3))
    assert run(*command, "--out", tmp_path / "run", "--copies", table).status == 2

    error = refusal(*command, "--check", "--copies", tmp_path / "gone" / "c.csv", status=2)
    assert str(tmp_path / "gone" / "c.csv") in error and "Errno" not in error
    picture = data / "red" / "00.png"
    before = picture.read_bytes()
    done = run(*command, "--check", "--copies", picture)
    assert (done.status, "00.png" in done.err, picture.read_bytes() == before) == (2, True, True)


def test_the_columns_of_a_table_are_named_by_options_and_kept_in_the_recipe(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(image_folder / "train", tmp_path / "data"))
    files = sorted(data.rglob("*.png"))
    rows = [f"{i},{f.relative_to(data)},{f.parent.name},p{i // 2}" for i, f in enumerate(files)]
    (data / "labels.csv").write_text("\n".join([",File Name,dx,patient", *rows]))
    out = tmp_path / "run"
    command = ("train", recipe_file, "--data", data, *set_options(
        ("evaluation.ood=[]", "training.epochs=0", "evaluation.calibrated=[1]")
    ))  # fmt: skip
    columns = ("--path-column", "file name", "--label-column", "dx", "--group-column", "patient")
    assert {*columns} < {*shlex.split(run(*command, "--check").out)}
    assert "groups" in succeed(*command, *columns, "--check").out
    assert run(*command, *columns, "--out", out).status == 0
    evaluation = ("evaluate", out, "--data", data, "--mode", "det")
    assert run(*evaluation).status == 0
    (data / "labels.csv").write_text("\n".join(
        row.rpartition(",")[0] for row in [",File Name,dx,patient", *rows]
    ))  # fmt: skip
    assert "--group-column group" in refusal(*evaluation)
    assert run(*evaluation, "--group-column", "group").status == 0


def test_the_current_folder_can_be_the_output_folder(
    recipe_file: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    monkeypatch.chdir(out)
    succeed("train", recipe_file, "--data", image_folder, "--out", ".", "--track", "tensorboard",
            *set_options(SHORT))  # fmt: skip
    assert {"config.json", "report"} <= {path.name for path in Path().iterdir()}
    assert (tmp_path / "run.curves").is_dir()
    assert state_file(Path()) == state_file(out)


def test_names_that_are_not_utf_8_are_escaped_in_checkpoint_and_report(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    name = os.fsdecode(b"m\xe9l")
    data = Path(shutil.copytree(image_folder / "train", tmp_path / name))
    outside = Path(shutil.copytree(image_folder / "other", tmp_path / f"other-{name}"))
    shutil.copy(outside / "0.png", data / f"{name}.png")
    (data / "red" / f"{name}.png").write_bytes(b"broken")
    for file in (data / "blue").iterdir():
        file.rename(file.with_name(f"{name}-{file.name}"))
    out, report, escaped = tmp_path / "run", tmp_path / "report", printable(name)
    short = set_options(("evaluation.ood=[]", "training.epochs=0", "evaluation.calibrated=[1]"))
    command = ("train", recipe_file, "--data", data, "--skip-bad", *short)
    assert "not cached" not in succeed(*command, "--out", out).err
    provenance = json.loads((out / "config.json").read_text())["provenance"]
    assert provenance["data"].startswith(f"{escaped}, ")
    assert provenance["skipped"]["names"] == [f"red/{escaped}.png"]

    evaluation = ("evaluate", out, "--mode", "det", "--skip-bad")
    succeed(*evaluation, "--data", data, "--ood", outside, "--out", report, "--pictures")
    facts = json.loads((report / "report.json").read_text())
    assert (facts["data"], [*facts["ood_sets"]]) == (
        f"{provenance['data']}, test part", [f"other-{escaped}"]
    )  # fmt: skip
    assert any(f"{escaped}.png" in note for note in facts["notes"])

    namesake = Path(shutil.copytree(image_folder / "test", tmp_path / "elsewhere" / name))
    assert "has the name of the training's folder" in succeed(*evaluation, "--data", namesake).err


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["training.epoch=1"], "did you mean training.epochs?"),
        (["data.path=absent"], "absent"),
        (["backbone.weights=absent.safetensors"], "absent.safetensors"),
        (["backbone.image_size=50"], "patch_size=8, got 50"),
        (['evaluation.ood=[{kind="images",path="absent"}]'], "absent"),
        ([], "--track-dir outside"),
    ],
)
def test_an_invalid_setting_is_one_line_with_its_key_or_value(
    recipe_file: Path, image_folder: Path, overrides: list[str], named: str
) -> None:
    out = recipe_file.parent / "run"
    curves = [] if overrides else ["--track", "tensorboard", "--track-dir", str(out / "curves")]
    error = refusal("train", recipe_file, "--data", image_folder, "--out", out, *curves,
                    *set_options([*SHORT, *overrides]))  # fmt: skip
    assert named in error
    assert not out.exists()


def test_an_output_folder_or_outliers_among_the_pictures_are_refused(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(image_folder / "train", tmp_path / "data"))
    command = ("train", recipe_file, "--data", data, "--set", "data.classes={}")
    sets = ("--set", "evaluation.ood=[]")
    assert str(data / "run") in refusal(*command, *sets, "--out", data / "run")
    outliers = (*sets, "--set", "outliers.path='green'")
    for options in (("--out", tmp_path / "run"), ("--check",)):
        assert refusal(*command, *outliers, *options).startswith("eulerlora: green: ")
    assert not (tmp_path / "run").exists()
