"""The scheduler of runs on this machine, with shell scripts in place of trainings."""

import fcntl
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from eulerlora_contract.processes import python_command
from eulerlora_lab.tables import local, ray_cluster
from eulerlora_lab.tables.local import TrainingCommand, train_all, training_of
from eulerlora_lab.tables.table import TableRun, read_table, runs_of

TABLE = "ham10000-scale-check"
TIMEOUT_S = 300


@pytest.fixture
def runs(tmp_path: Path) -> list[TableRun]:
    """The four runs of one seed of a table, all new."""
    return runs_of(read_table(TABLE), [0], [], tmp_path / "runs")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with shell commands that replace each training.

    They can use `$variant`, `$device` and `$finish`, which marks the run as finished.
    """
    file = tmp_path / "script"

    def scripted(run: TableRun, data: Path, device: str) -> TrainingCommand:
        names = f"variant={run.recipe.variant} device={device} out={run.out}"
        finished = f'finish="mkdir -p {run.report_file.parent}; touch {run.report_file}"'
        command = ("sh", "-c", f"{names}; {finished}; cd {tmp_path}; . {file}")
        return replace(training_of(run, data, device), command=command)

    for scheduler in (local, ray_cluster):
        monkeypatch.setattr(scheduler, "training_of", scripted)
    return file


def wait_for(path: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not created"
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


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cpu", "cpu")])
def test_every_device_has_a_run_and_a_device_listed_twice_has_two(
    runs: list[TableRun], script: Path, tmp_path: Path, devices: tuple[str, str]
) -> None:
    script.write_text(
        "echo $device > on.$variant; i=0\n"
        "while [ $(ls on.* | wc -l) -lt 2 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done\n"
        "[ $i -lt 600 ]"
    )
    assert train_all(runs[:2], Path("data"), devices) == []
    used = [(tmp_path / f"on.{run.recipe.variant}").read_text().strip() for run in runs[:2]]
    assert tuple(used) == devices


def test_runs_on_the_cpu_share_its_threads(
    runs: list[TableRun], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $OMP_NUM_THREADS > threads.$variant")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    train_all(runs[:1], Path("data"), ["cpu", "cuda:0", "cpu"])
    assert (tmp_path / "threads.lora-20").read_text().strip() == "2"


def test_a_failing_run_does_not_stop_the_others_and_reports_its_last_line(
    runs: list[TableRun], script: Path
) -> None:
    runs[1].log.parent.mkdir(parents=True)
    runs[1].log.write_text("from an earlier program\n")
    script.write_text(
        "case $variant in\n"
        "lora-20) echo begun; echo 'eulerlora: no such thing' >&2; exit 1;;\n"
        "eulerlora-1) exit 3;;\n"
        "ensemble-20x2) echo epoch 1; kill -9 $$;;\n"
        "esac; eval $finish"
    )
    assert train_all(runs, Path("data"), ["cpu", "cpu"]) == [
        f"{run.name} failed: {reason} ({run.log})"
        for run, reason in zip(
            runs[:3],
            ("eulerlora: no such thing", "exit status 3 without output", "killed by SIGKILL"),
            strict=True,
        )
    ]
    assert [run.status for run in runs] == ["new", "new", "new", "finished"]
    assert runs[0].log.read_text() == "begun\neulerlora: no such thing\n"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM)])
def test_ctrl_c_and_sigterm_interrupt_every_run_and_wait_for_its_state(
    interruption: BaseException,
    runs: list[TableRun],
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script.write_text(
        "trap 'sleep 0.3; touch saved.$variant; exit 1' TERM; trap '' INT; touch ready.$variant\n"
        "i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
    )

    def interrupt(_seconds: float) -> None:
        for run in runs[:2]:
            wait_for(tmp_path / f"ready.{run.recipe.variant}")
        raise interruption

    monkeypatch.setattr(local, "time", _Sleeping(interrupt))
    with pytest.raises(type(interruption)):
        train_all(runs, Path("data"), ["cpu", "cpu"])
    assert {path.name for path in tmp_path.glob("saved.*")} == {
        "saved.lora-20",
        "saved.eulerlora-1",
    }


@dataclass(frozen=True)
class _Sleeping:
    """A replacement of the module `time` with another sleep."""

    sleep: object


def test_runs_that_another_program_finishes_meanwhile_are_neither_trained_nor_failures(
    runs: list[TableRun],
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.write_text("eval $finish")

    def finish(seconds: float) -> None:
        for run in (runs[0], runs[2]):
            run.report_file.parent.mkdir(parents=True, exist_ok=True)
            run.report_file.touch()
        time.sleep(seconds)

    monkeypatch.setattr(local, "time", _Sleeping(finish))
    runs[0].log.parent.mkdir(parents=True)
    with runs[0].log.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert train_all(runs[:3], Path("data"), ["cpu"]) == []
    assert [run.status for run in runs[:3]] == ["finished"] * 3
    assert not runs[2].log.exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{runs[0].name} is locked by another program"
    assert lines[-1] == f"run 3 of 3: {runs[2].name} done by another program"


def test_a_run_survives_a_killed_program_and_is_not_started_twice(
    runs: list[TableRun], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $$ > pid; mv pid running; exec sleep 60")

    class Killed(BaseException):
        pass

    def kill(_seconds: float) -> None:
        wait_for(tmp_path / "running")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(local, "time", _Sleeping(kill))
        with pytest.raises(Killed):
            train_all(runs[:1], Path("data"), ["cpu"])
    try:
        (failure,) = train_all(runs[:1], Path("data"), ["cpu"])
    finally:
        os.kill(int((tmp_path / "running").read_text()), signal.SIGKILL)
    assert "locked by another program" in failure


def test_the_training_command_repeats_the_settings_and_resumes(tmp_path: Path) -> None:
    run = runs_of(read_table("cifar10"), [42], ["training.workers=2"], tmp_path)[0]
    assert training_of(run, Path("data"), "cuda:1").command == (
        *python_command("eulerlora_contract", "train"), str(read_table("cifar10").recipe_path),
        "--variant", "single", "--data", "data", "--out", str(run.out),
        "--device", "cuda:1", "--resume", "--set", "training.workers=2", "--set", "seed=42",
    )  # fmt: skip
