"""The scheduler on a Ray cluster of two machines, both of them on this one.

Shell scripts take the place of trainings, as for the scheduler on this machine.
"""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread, get_ident
from typing import Any

import pytest

from eulerlora_lab.tables.ray_cluster import RunResources, train_on_cluster
from eulerlora_lab.tables.table import TableRun
from tests.program import refusal
from tests.server_process import wait_until

TIMEOUT_S = 300
DATA = Path("data")
PATIENT = {  # on a busy machine; a process that has ended refuses the check at once
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 10,
}
ON_CPU = RunResources("cpu")
WAIT = "i=0; while [ $i -lt 3000 ]; do sleep 0.1; i=$((i+1)); done"
SAVE_AT_SIGINT = "trap 'touch saved.$variant; exit 1' INT; "


@dataclass(frozen=True)
class TwoMachines:
    """A cluster whose two machines have one CPU each; scripts see the names as $TORCH_MACHINE."""

    cluster: Any

    def add(self, name: str, **settings: Any) -> None:
        self.cluster.add_node(
            num_cpus=1,
            object_store_memory=80_000_000,
            include_dashboard=False,
            env_vars={"TORCH_MACHINE": name},
            **settings,
        )


@pytest.fixture(scope="module")
def machines() -> Iterator[TwoMachines]:
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # 15 by default: slow beside other programs
        cluster = cluster_utils.Cluster()
        two = TwoMachines(cluster)
        try:
            two.add("first", _system_config=PATIENT)
            ray.init(address=cluster.address, log_to_driver=False)
            two.add("second")
            yield two
        finally:
            ray.shutdown()
            cluster.shutdown()


def meanwhile(action: Callable[[], object]) -> Thread:
    thread = Thread(target=action)
    thread.start()
    return thread


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eulerlora_lab.tables.ray_cluster.find_spec", lambda _name: None)
    assert "eulerlora-lab[ray]" in refusal("reproduce", "ham10000", "--engine", "ray")


@pytest.mark.slow
def test_the_runs_are_spread_over_the_machines_and_all_end(
    runs: list[TableRun], script: Path, machines: TwoMachines, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script.write_text(
        "touch here.$variant on.$TORCH_MACHINE\n"
        "case $variant in ensemble-20x2) echo 'eulerlora: no such thing'; exit 1;; esac\n"
        "i=0; while [ $(ls here.* | wc -l) -lt 2 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1));"
        " done; echo $OMP_NUM_THREADS > threads; finish"
    )
    runs[0].report_file.parent.mkdir(parents=True)
    runs[0].report_file.touch()
    failures = train_on_cluster(runs, DATA, ON_CPU)
    failed = next(run for run in runs if run.recipe.variant == "ensemble-20x2")
    assert failures == [f"{failed.name} failed: eulerlora: no such thing ({failed.log})"]
    assert {run.status for run in runs if run is not failed} == {"finished"}
    assert {path.name for path in tmp_path.glob("on.*")} == {"on.first", "on.second"}
    assert not (tmp_path / f"here.{runs[0].recipe.variant}").exists()
    assert (tmp_path / "threads").read_text().strip() == "1"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 runs on 2 machines of a Ray cluster, on cpu"
    assert len(lines) == 4


@pytest.mark.slow
def test_the_process_of_a_killed_worker_saves_its_state_and_continues(
    runs: list[TableRun], script: Path, machines: TwoMachines, tmp_path: Path
) -> None:
    script.write_text(
        f"[ -e saved.$variant ] && {{ finish; exit; }}\n"
        f"{SAVE_AT_SIGINT} echo $PPID > pid; mv pid worker; {WAIT}"
    )

    def kill() -> None:
        wait_until((tmp_path / "worker").exists, TIMEOUT_S)
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)

    killing = meanwhile(kill)
    assert train_on_cluster(runs[:1], DATA, ON_CPU) == []
    killing.join()
    assert runs[0].status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_ctrl_c_and_sigterm_interrupt_every_run_and_wait_for_its_state(
    number: signal.Signals,
    raised: type[BaseException],
    runs: list[TableRun],
    script: Path,
    machines: TwoMachines,
    tmp_path: Path,
) -> None:
    script.write_text(f"{SAVE_AT_SIGINT} touch ready.$variant; {WAIT}")

    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, TIMEOUT_S)
        signal.pthread_kill(main_thread, number)

    main_thread = get_ident()
    interrupting = meanwhile(interrupt)
    with pytest.raises(raised):
        train_on_cluster(runs[:2], DATA, ON_CPU)
    interrupting.join()
    saved = {path.name for path in tmp_path.glob("saved.*")}
    assert saved == {f"saved.{run.recipe.variant}" for run in runs[:2]}


@pytest.mark.slow
def test_a_run_locked_by_another_program_is_skipped(
    runs: list[TableRun], script: Path, machines: TwoMachines
) -> None:
    script.write_text("finish")
    runs[0].log.parent.mkdir(parents=True)
    with runs[0].log.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        failures = train_on_cluster(runs[:2], DATA, RunResources("cpu", lock_wait_s=0.5))
    assert failures == [f"{runs[0].name} failed: locked by another program"]
    assert [run.status for run in runs[:2]] == ["new", "finished"]
