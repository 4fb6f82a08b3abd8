"""The scheduler of runs on this machine, with shell scripts in place of trainings."""

import fcntl
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread, get_ident
from types import SimpleNamespace

import pytest
import torch

from eulerlora_lab.tables.table import TableRun
from tests.program import Completed
from tests.server_process import wait_until

TIMEOUT_S = 300
Reproduce = Callable[..., Completed]


def test_one_device_has_one_run_at_a_time(
    runs: list[TableRun], script: Path, reproduce: Reproduce
) -> None:
    script.write_text("mkdir busy || exit 1; sleep 0.1; rmdir busy; finish")
    done = reproduce("--device", "cpu")
    assert done.status == 0, done.err
    assert done.out.splitlines()[:8] == [
        line
        for number, run in enumerate(runs, start=1)
        for line in (f"run {number} of 4: {run.name} on cpu", f"{run.name} done")
    ]


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cpu", "cpu")])
def test_every_device_has_a_run_and_a_device_listed_twice_has_two(
    script: Path, tmp_path: Path, reproduce: Reproduce, devices: tuple[str, str]
) -> None:
    script.write_text(
        "echo $device > on.$variant; i=0\n"
        "while [ $(ls on.* | wc -l) -lt 2 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done\n"
        "[ $i -lt 600 ]"
    )
    variants = ("lora-20", "eulerlora-1")
    chosen = (word for name in variants for word in ("--variant", name))
    done = reproduce(*chosen, *(word for name in devices for word in ("--device", name)))
    assert done.status == 0, done.err
    used = [(tmp_path / f"on.{name}").read_text().strip() for name in variants]
    assert tuple(used) == devices
    assert "No run is finished yet" in done.out
    assert "### Cost" not in done.out


def test_runs_on_the_cpu_share_its_threads(
    script: Path, tmp_path: Path, reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $OMP_NUM_THREADS > threads.$variant")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    devices = ("--device", "cpu", "--device", "cuda:0", "--device", "cpu")
    reproduce("--variant", "lora-20", *devices)
    assert (tmp_path / "threads.lora-20").read_text().strip() == "2"


def test_a_failing_run_does_not_stop_the_others_and_reports_its_last_line(
    runs: list[TableRun], script: Path, reproduce: Reproduce
) -> None:
    runs[1].log.parent.mkdir(parents=True)
    runs[1].log.write_text("from an earlier program\n")
    script.write_text(
        "case $variant in\n"
        "lora-20) echo begun; echo 'eulerlora: no such thing' >&2; exit 1;;\n"
        "eulerlora-1) exit 3;;\n"
        "ensemble-20x2) echo epoch 1; kill -9 $$;;\n"
        "esac; finish"
    )
    done = reproduce("--device", "cpu")
    failures = [
        f"{run.name} failed: {reason} ({run.log})"
        for run, reason in zip(
            runs[:3],
            ("eulerlora: no such thing", "exit status 3 without output", "killed by SIGKILL"),
            strict=True,
        )
    ]
    assert (done.status, done.err) == (1, f"eulerlora: 3 of 4 runs failed: {failures[0]}\n")
    assert [line for line in done.out.splitlines() if "failed" in line] == failures
    assert [run.status for run in runs] == ["new", "new", "new", "finished"]
    assert runs[0].log.read_text() == "begun\neulerlora: no such thing\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_interrupt_every_run_and_wait_for_its_state(
    number: signal.Signals, status: int, script: Path, tmp_path: Path, reproduce: Reproduce
) -> None:
    script.write_text(
        "trap 'sleep 0.3; touch saved.$variant; exit 1' TERM; trap '' INT; touch ready.$variant\n"
        "i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
    )

    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, TIMEOUT_S)
        signal.pthread_kill(main_thread, number)

    main_thread = get_ident()
    interrupting = Thread(target=interrupt)
    interrupting.start()
    done = reproduce("--device", "cpu", "--device", "cpu")
    interrupting.join()
    assert done.status == status
    assert {path.name for path in tmp_path.glob("saved.*")} == {
        "saved.lora-20",
        "saved.eulerlora-1",
    }


def test_runs_that_another_program_finishes_meanwhile_are_neither_trained_nor_failures(
    runs: list[TableRun], script: Path, reproduce: Reproduce
) -> None:
    script.write_text("finish lora-20 eulerlora-1 ensemble-20x2")
    runs[0].log.parent.mkdir(parents=True)
    with runs[0].log.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        variants = ("lora-20", "eulerlora-1", "ensemble-20x2")
        chosen = (word for name in variants for word in ("--variant", name))
        done = reproduce("--device", "cpu", *chosen)
    assert done.status == 0, done.err
    assert [run.status for run in runs[:3]] == ["finished"] * 3
    assert not runs[2].log.exists()
    lines = done.out.splitlines()
    assert lines[1] == f"{runs[0].name} is locked by another program"
    assert f"run 3 of 3: {runs[2].name} done by another program" in lines


def test_a_run_survives_a_killed_program_and_is_not_started_twice(
    script: Path, tmp_path: Path, reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("echo $$ > pid; mv pid running; exec sleep 60")

    class Killed(BaseException):
        pass

    def kill(_seconds: float) -> None:
        wait_until((tmp_path / "running").exists, TIMEOUT_S)
        raise Killed

    one = ("--variant", "lora-20", "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr("eulerlora_lab.tables.local.time", SimpleNamespace(sleep=kill))
        with pytest.raises(Killed):
            reproduce(*one)
    try:
        done = reproduce(*one)
    finally:
        os.kill(int((tmp_path / "running").read_text()), signal.SIGKILL)
    assert done.status == 1
    assert "locked by another program" in done.err


def test_the_training_command_repeats_the_settings_and_resumes(
    runs: list[TableRun], script: Path, tmp_path: Path, data: Path, on_tiny_data: list[str],
    reproduce: Reproduce,
) -> None:  # fmt: skip
    script.write_text('echo "$arguments" > arguments')
    reproduce("--variant", "eulerlora-1", "--seeds", "42", "--device", "cuda:1")
    out = runs[1].out.with_name("seed-42")
    assert shlex.split((tmp_path / "arguments").read_text()) == [
        *("train", str(runs[1].file), "--variant", "eulerlora-1", "--data", str(data)),
        *("--out", str(out), "--device", "cuda:1", "--resume", *on_tiny_data[2:]),
        *("--set", "seed=42"),
    ]
