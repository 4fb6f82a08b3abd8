"""training.reproduction.reproduce and its command: all runs of a table.

How processes are started, watched and stopped is tested with shell scripts in their place; what
comes out of a table, with trainings as they are.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.models import ViT_B_32_Weights

from eulerlora.backbone import save_backbone
from eulerlora.checkpoint import ADAPTERS
from tests.conftest import TINY_BACKBONE, random_backbone
from tests.program import Done, run
from tests.training.conftest import PER_CLASS
from tests.training.made_up_runs import finish
from training.adaptation.train import REPORT, state_file
from training.commands import reproduce as reproduce_command
from training.evaluation.report_schema import JSON
from training.reproduction import reproduce
from training.reproduction.reproduce import all_devices, command_of, log_file, train_all
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import Table, read_table

TABLE = "ham10000-scale-check"
GIVE_UP_S = 300


@pytest.fixture
def runs(tmp_path: Path) -> list[TableRun]:
    """The four runs of one seed of a table, all new."""
    return runs_of(read_table(TABLE), [0], [], tmp_path / "runs")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file: its shell commands run instead of each training.

    They know `$variant`, `$device` and `$finish`, which makes the run finished.
    """
    file = tmp_path / "script"

    def command(run: TableRun, data: Path, device: str) -> list[str]:
        report = run.out / REPORT / JSON
        names = f"variant={run.recipe.variant} device={device} out={run.out}"
        finished = f'finish="mkdir -p {report.parent}; touch {report}"'
        return ["sh", "-c", f"{names}; {finished}; cd {tmp_path}; . {file}"]

    monkeypatch.setattr(reproduce, "command_of", command)
    return file


def wait_for(place: Path) -> None:
    end = time.monotonic() + GIVE_UP_S
    while not place.exists():
        assert time.monotonic() < end, f"{place} never came"
        time.sleep(0.02)


def test_one_device_has_one_run_at_a_time(
    runs: list[TableRun], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("mkdir busy || exit 1; sleep 0.1; rmdir busy; eval $finish")
    assert train_all(runs, Path("data"), ["cpu"]) == []
    assert capsys.readouterr().out.splitlines() == [
        line
        for number, run in enumerate(runs, start=1)
        for line in (f"run {number} of 4: {run.name} on cpu", f"{run.name} done")
    ]


def test_a_device_named_twice_has_two_runs_at_a_time(
    runs: list[TableRun], script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "touch here.$variant; i=0\n"
        "while [ $(ls here.* | wc -l) -lt 2 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done\n"
        "[ $i -lt 600 ]"
    )
    assert train_all(runs[:2], Path("data"), ["cpu", "cpu"]) == []


def test_runs_on_the_cpu_share_its_threads(
    runs: list[TableRun], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $OMP_NUM_THREADS > threads.$variant")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    train_all(runs[:1], Path("data"), ["cpu", "cuda:0", "cpu"])
    assert (tmp_path / "threads.lora-20").read_text().strip() == "2"


def test_every_device_has_its_runs(runs: list[TableRun], script: Path, tmp_path: Path) -> None:
    script.write_text("echo $variant > on.$device; sleep 0.3")
    train_all(runs[:2], Path("data"), ["cuda:0", "cuda:1"])
    found = {path.name: path.read_text().strip() for path in tmp_path.glob("on.*")}
    assert found == {"on.cuda:0": "lora-20", "on.cuda:1": "eulerlora-1"}


def test_a_failing_run_does_not_end_the_others_and_tells_its_last_line(
    runs: list[TableRun], script: Path
) -> None:
    log_file(runs[1]).parent.mkdir(parents=True)
    log_file(runs[1]).write_text("from an earlier program\n")
    script.write_text(
        "case $variant in\n"
        "lora-20) echo begun; echo 'eulerlora: no such thing' >&2; exit 1;;\n"
        "eulerlora-1) exit 3;;\n"
        "ensemble-20x2) echo epoch 1; kill -9 $$;;\n"
        "esac; eval $finish"
    )
    assert train_all(runs, Path("data"), ["cpu", "cpu"]) == [
        f"{run.name} failed: {why} ({log_file(run)})"
        for run, why in zip(
            runs[:3],
            ("eulerlora: no such thing", "exit status 3 without a word", "killed by SIGKILL"),
            strict=True,
        )
    ]
    assert [each.status for each in runs] == ["new", "new", "new", "finished"]
    assert log_file(runs[0]).read_text() == "begun\neulerlora: no such thing\n"


def test_only_what_is_not_finished_is_trained(
    runs: list[TableRun], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("eval $finish")
    train_all(runs[1:], Path("data"), ["cpu"])
    capsys.readouterr()
    train_all(runs, Path("data"), ["cpu"])
    assert capsys.readouterr().out == (f"run 1 of 1: {runs[0].name} on cpu\n{runs[0].name} done\n")


def test_ctrl_c_reaches_every_run_and_waits_for_what_it_keeps(
    runs: list[TableRun], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(
        "trap 'sleep 0.3; touch kept.$variant; exit 1' INT; touch ready.$variant\n"
        "i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
    )

    def interrupt(_seconds: float) -> None:
        for each in runs[:2]:
            wait_for(tmp_path / f"ready.{each.recipe.variant}")
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "time", _Sleeping(interrupt))
    with pytest.raises(KeyboardInterrupt):
        train_all(runs, Path("data"), ["cpu", "cpu"])
    assert {path.name for path in tmp_path.glob("kept.*")} == {"kept.lora-20", "kept.eulerlora-1"}


@dataclass(frozen=True)
class _Sleeping:
    """The module `time` with another sleep."""

    sleep: object


def test_a_run_that_another_program_is_at_work_on_is_left_to_it(
    runs: list[TableRun], script: Path
) -> None:
    script.write_text("eval $finish")
    log_file(runs[0]).parent.mkdir(parents=True)
    with log_file(runs[0]).open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        failures = train_all(runs[:2], Path("data"), ["cpu"])
    assert failures == [f"{runs[0].name}: another program is at work on it"]
    assert [each.status for each in runs[:2]] == ["new", "finished"]


def test_a_run_outlives_a_killed_program_and_is_not_begun_twice(
    runs: list[TableRun], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $$ > pid; mv pid running; exec sleep 60")

    class Killed(BaseException):
        pass

    def kill(_seconds: float) -> None:
        wait_for(tmp_path / "running")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "time", _Sleeping(kill))
        with pytest.raises(Killed):
            train_all(runs[:1], Path("data"), ["cpu"])
    try:
        (failure,) = train_all(runs[:1], Path("data"), ["cpu"])
    finally:
        os.kill(int((tmp_path / "running").read_text()), signal.SIGKILL)
    assert "another program" in failure


def test_the_command_of_a_run_repeats_its_settings_and_continues_it(tmp_path: Path) -> None:
    wanted = runs_of(read_table("cifar10"), [42], ["training.workers=2"], tmp_path)[0]
    assert command_of(wanted, Path("data"), "cuda:1") == [
        sys.executable, "-m", "eulerlora", "train", str(read_table("cifar10").recipe_path),
        "--variant", "lora-20", "--data", "data", "--out", str(wanted.out),
        "--device", "cuda:1", "--resume", "--set", "training.workers=2", "--set", "seed=42",
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "names"), [(0, ["cpu"]), (2, ["cuda:0", "cuda:1"])])
def test_all_devices_are_the_gpus_or_else_the_cpu(
    monkeypatch: pytest.MonkeyPatch, count: int, names: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert all_devices() == names


# The command, without training.


def test_a_dry_run_lists_every_run_with_its_settings_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    data, out = tmp_path / "data", tmp_path / "runs"
    table = read_table("ham10000")
    finish(runs_of(table, [0], [], out)[0])
    done = run("reproduce", "ham10000", "--dry-run", "--seeds", "all", "--data", data, "--out", out)
    assert done.status == 0, done.err
    runs, absent = (
        [line for line in done.out.splitlines() if line.startswith("missing: ") == missing]
        for missing in (False, True)
    )
    assert [line.split(":")[0].split() for line in runs] == [
        [each.status, each.name] for each in runs_of(table, table.seeds, [], out)
    ]
    assert [line.split()[0] for line in runs[:2]] == ["finished", "new"]
    assert next(each for each in runs if "eulerlora-2/seed-42:" in each).endswith(
        ": ham10000, paper split; ViT_B_32_Weights.IMAGENET1K_V1; 2 x rank 20; "
        "Kmin 10, T 2, sigma 1, 4 samples; 65 epochs of batches of 32, rate 0.0001, decay 0.01, "
        "warm-up 500; paper views, random head, class weights effective-number; float32, seed 42"
    )
    assert "1 x rank 20; not sampled;" in next(each for each in runs if "lora-20/seed-0:" in each)
    weights, metadata, images = absent
    url = ViT_B_32_Weights.IMAGENET1K_V1.url
    place = tmp_path / "torch" / "hub" / "checkpoints" / Path(url).name
    hash_prefix = place.stem.rpartition("-")[2]
    assert all(each in weights for each in (url, f"begins {hash_prefix},", str(place)))
    assert metadata == f"missing: HAM10000: {data / 'HAM10000_metadata.csv'}"
    assert images.startswith(f"missing: HAM10000: {data} with HAM10000_images_part_1")


def test_a_dry_run_of_cifar10_names_the_outside_set_too(tmp_path: Path) -> None:
    done = run("reproduce", "cifar10", "--dry-run", "--data", tmp_path, "--out", tmp_path / "runs")
    assert done.status == 0, done.err
    for url in (datasets.CIFAR10.url, *(each[0] for each in datasets.SVHN.split_list.values())):
        assert (url in done.out) == ("extra" not in url), url
    assert not (tmp_path / "runs").exists()


def test_nothing_is_missing_for_a_table_whose_runs_are_finished(tmp_path: Path) -> None:
    for each in runs_of(read_table(TABLE), [0], [], tmp_path):
        finish(each)
    done = run("reproduce", TABLE, "--dry-run", "--out", tmp_path, "--data", tmp_path / "none")
    assert done.status == 0, done.err
    assert done.out.splitlines()[-1] == "nothing is missing"


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["cifar"], 2, "'ham10000-scale-check'"),
        ([], 2, "Missing argument"),
        ([TABLE, "--seeds", "one"], 1, "--seeds wants all or such as 0,42, not 'one'"),
        ([TABLE, "--seeds", "0,"], 1, "--seeds"),
        ([TABLE, "--seeds", "-1"], 1, "seed"),
        ([TABLE, "--set", "training.epochs"], 1, "--set wants key=value"),
        ([TABLE, "--set", "evaluation.samples=2"], 1, "evaluation.samples is 2"),
        (["ham10000", "--set", "backbone.weights=ViT_B_99", "--dry-run"], 1, "ViT_B_99"),
    ],
)
def test_wrong_usage_is_one_line_and_begins_nothing(
    tmp_path: Path, arguments: list[str], status: int, named: str
) -> None:
    done = run("reproduce", *arguments, "--out", tmp_path / "runs", "--data", tmp_path)
    assert done.status == status
    assert named in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_data_that_is_not_there_is_one_line_and_begins_nothing(tmp_path: Path) -> None:
    done = run("reproduce", TABLE, "--out", tmp_path / "runs", "--data", tmp_path / "none")
    assert done.status == 1
    assert str(tmp_path / "none") in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_seed_named_twice_is_one_run(tmp_path: Path) -> None:
    done = run("reproduce", TABLE, "--dry-run", "--seeds", "42,0,42", "--out", tmp_path)
    seeds = [line.split(":")[0].rpartition("-")[2] for line in done.out.splitlines() if ";" in line]
    assert seeds == ["42"] * 4 + ["0"] * 4


# Trainings as they are, on tiny images with a tiny backbone.


def settings(data: Path, *more: str) -> list[str]:
    overrides = (
        "data.kind=imagefolder",
        "data.path=.",
        f"backbone.weights={data / 'backbone.safetensors'}",
        f"backbone.image_size={TINY_BACKBONE.image_size}",
        "training.epochs=1",
        "training.warmup_steps=1",
        "training.batch_size=8",
        "training.workers=0",
        *more,
    )
    return [part for each in overrides for part in ("--set", each)]


@pytest.fixture(scope="module")
def data(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with train/, test/ and a tiny backbone's file."""
    folder = tmp_path_factory.mktemp("tiny data")
    for part in PER_CLASS:
        (folder / part).symlink_to(image_folder / part)
    save_backbone(folder / "backbone.safetensors", random_backbone(), {}, torch.float32)
    return folder


@pytest.fixture(scope="module")
def one_method() -> Iterator[None]:
    """Of the table, the rows of two adapters alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_command, "read_table", lambda _name: only("eulerlora-2"))
        yield


def only(variant: str) -> Table:
    table = read_table(TABLE)
    rows = tuple(row for row in table.rows if row.variant == variant)
    return table.model_copy(update={"rows": rows})


@dataclass(frozen=True)
class Reproduced:
    """A table of two runs, seeds 0 and 42, both at once; how its program ended."""

    data: Path
    out: Path
    done: Done

    def again(self, out: Path, *more: str, seeds: str = "0,42") -> Done:
        return run(
            "reproduce", TABLE, "--seeds", seeds, "--data", self.data, "--out", out,
            "--device", "cpu", "--device", "cpu", *settings(self.data, *more),
        )  # fmt: skip

    def folders(self, out: Path) -> list[Path]:
        return [out / TABLE / "eulerlora-2" / f"seed-{seed}" for seed in (0, 42)]


@pytest.fixture(scope="module")
def reproduced(
    data: Path, one_method: None, tmp_path_factory: pytest.TempPathFactory
) -> Reproduced:
    out = tmp_path_factory.mktemp("reproduced") / "runs"
    found = Reproduced(data, out, Done(0, "", ""))
    return Reproduced(data, out, found.again(out))


@pytest.fixture
def copied(reproduced: Reproduced, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reproduced.out, tmp_path / "copied"))


def table_of(done: Done) -> str:
    return done.out[done.out.index("## ") :]


def test_a_table_is_trained_measured_and_printed(reproduced: Reproduced) -> None:
    done = reproduced.done
    assert done.status == 0, done.err
    names = [f"{TABLE}/eulerlora-2/seed-{seed}" for seed in (0, 42)]
    told = done.out.splitlines()
    assert told[:2] == [f"run {i} of 2: {name} on cpu" for i, name in enumerate(names, start=1)]
    assert sorted(told[2:4]) == sorted(f"{name} done" for name in names)
    folders = reproduced.folders(reproduced.out)
    reports = [json.loads((folder / REPORT / JSON).read_text()) for folder in folders]
    rows = [line for line in told if line.startswith("| EulerLoRA, 2 adapters")]
    assert len(rows) == 2
    for row, mode in zip(rows, ("det", "stoch"), strict=True):
        (figures,) = zip(
            *([each["metrics"] for each in report["modes"] if each["mode"] == mode]
              for report in reports), strict=True,
        )  # fmt: skip
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2:4] == ["det" if mode == "det" else "stoch, 4 samples", "2 seeds"]
        accuracy = 100 * np.array([each["accuracy"]["value"] for each in figures])
        assert cells[4] == f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}"
        nll = np.array([each["nll"]["value"] for each in figures])
        assert cells[-2] == f"{nll.mean():.3f} ± {nll.std(ddof=1):.3f}"
    assert any("seeds 0, 42" in line for line in told)
    assert any(line.startswith("- differs from the recipe:") for line in told)


def test_each_run_leaves_its_checkpoint_its_report_and_its_log(reproduced: Reproduced) -> None:
    folders = reproduced.folders(reproduced.out)
    assert {path.name for path in folders[0].parent.iterdir()} == {
        name for folder in folders for name in (folder.name, f"{folder.name}.log")
    }
    for folder in folders:
        assert (folder / REPORT / "report.md").exists()
        assert (
            folder.with_name(f"{folder.name}.log").read_text().endswith(f"checkpoint in {folder}\n")
        )
    first, second = ((folder / ADAPTERS).read_bytes() for folder in folders)
    assert first != second


def test_a_second_call_trains_nothing_and_prints_the_same(
    reproduced: Reproduced, copied: Path
) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}

    before = content()
    done = reproduced.again(copied)
    assert done.status == 0, done.err
    assert done.out == table_of(reproduced.done)
    assert content() == before


def test_runs_with_other_settings_are_refused_in_one_line(
    reproduced: Reproduced, copied: Path
) -> None:
    done = reproduced.again(copied, "training.epochs=2")
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert "seed-0: holds a run with other settings; give another --out" in line
    assert done.out == ""


def test_a_run_without_its_report_is_only_measured_again_beside_one_that_fails(
    reproduced: Reproduced, copied: Path
) -> None:
    measured, broken = reproduced.folders(copied)
    figures, adapters = (measured / REPORT / JSON), (measured / ADAPTERS)
    before = [place.read_bytes() for place in (figures, adapters)]
    figures.unlink()
    shutil.rmtree(broken)
    state_file(broken).write_bytes(b"broken")
    done = reproduced.again(copied)
    assert done.status == 1
    (line,) = done.err.splitlines()
    assert line.startswith(f"eulerlora: 1 of 2 runs failed: {TABLE}/eulerlora-2/seed-42 failed: ")
    assert str(state_file(broken)) in line
    assert log_text(broken).strip().splitlines()[-1] in line
    assert f"{TABLE}/eulerlora-2/seed-0 done" in done.out
    assert "| 1 seed |" in table_of(done)
    assert [place.read_bytes() for place in (figures, adapters)] == before
    assert (
        "epoch 1/" not in log_text(measured)[len(log_text(reproduced.folders(reproduced.out)[0])) :]
    )


def log_text(folder: Path) -> str:
    return folder.with_name(f"{folder.name}.log").read_text()


@pytest.mark.slow
def test_an_interrupted_table_is_continued_by_the_next_call(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"
    command: Sequence[str | Path] = [
        "reproduce", TABLE, "--data", data, "--out", out, "--device", "cpu",
        *settings(data, "training.epochs=12", "training.state_every_s=0"),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "eulerlora", *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = out / TABLE / "lora-20" / "seed-0"
    wait_for(state_file(begun))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=GIVE_UP_S)
    assert process.returncode == 1
    assert errors.strip() == "eulerlora: interrupted"
    assert state_file(begun).exists()
    assert not begun.exists()
    assert "interrupted; no checkpoint was written; the state of step" in log_text(begun)

    monkeypatch.setattr(reproduce_command, "read_table", lambda _name: only("lora-20"))
    done = run(*command)
    assert done.status == 0, done.err
    assert "continuing after step" in log_text(begun)
    assert not state_file(begun).exists()
    assert "| 1 seed |" in table_of(done)
