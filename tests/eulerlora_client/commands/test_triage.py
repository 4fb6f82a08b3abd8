"""`eulerlora triage`: every file has its row, and the exit status tells."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from eulerlora_client.commands.progress import Display
from eulerlora_client.commands.triage import triage_command
from eulerlora_client.policy.wording import WARNING
from tests.eulerlora_client.runs import mel_policy_file, picture, triage

ROOT = Path(__file__).parents[3]
DETAILS = {
    "name": "tiny",
    "revision": "sha256:0",
    "classes": [{"name": "mel"}, {"name": "nv"}],
    "adapters": 2,
    "input_size": 32,
    "image_limits": {"min_side": 32, "max_side": 8192, "max_pixels": 24_000_000},
    "max_body_bytes": 100_000,
    "max_samples": 64,
}


@pytest.fixture
def url(live: int) -> str:
    return f"http://127.0.0.1:{live}"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy for the tiny model."""
    return mel_policy_file(tmp_path / "policy.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures, and a file of notes that is none."""
    folder = tmp_path / "lesions"
    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(("1.png", "2.png", "more/3.png")):
        (folder / name).write_bytes(picture(number))
    (folder / "notes.txt").touch()
    return folder


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_folder_is_triaged(folder: Path, url: str, policy: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    done = triage(folder, "--url", url, "--policy", policy, "--csv", file)
    assert done.status == 0, done.err
    assert done.err == "1 file without an image's extension left out\n"
    assert "3 files: " in done.out
    assert " ".join(WARNING.split()) in " ".join(done.out.split())
    rows = rows_in(file)
    assert [Path(row["file"]).name for row in rows] == ["1.png", "2.png", "3.png"]
    for row in rows:
        assert (row["mode"], row["samples"], row["trajectories"]) == ("stoch", "4", "8")
        assert row["disposition"]
        assert row["policy_hash"].startswith("sha256:")


def test_bad_files_have_rows_that_say_why_and_the_status_is_1(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    bad = {
        "broken.jpg": (b"\xff\xd8\xff" + bytes(100), "unusable_image"),
        "cut.png": (picture()[:-100], "unusable_image"),
        "empty.webp": (b"", "invalid_upload"),
        "large.png": (bytes(100_001), "body_too_large"),
        "phone.heic": (b"\0\0\0\x18ftypheic" + bytes(100), "unsupported_media"),
        "text.png": (b"no picture", "unsupported_media"),
    }
    for name, (content, _) in bad.items():
        (folder / name).write_bytes(content)
    (folder / "vanished.png").symlink_to("nowhere")
    (folder / "loop.png").symlink_to("loop.png")
    file = tmp_path / "rows.jsonl"
    done = triage(folder, "--url", url, "--policy", policy, "--json-lines", file)
    assert (done.status, done.err.splitlines()[-1]) == (
        1,
        "eulerlora: 8 of 11 files got no decision",
    )
    rows = {Path(row["file"]).name: row for row in map(json.loads, file.read_text().splitlines())}
    assert len(rows) == 11
    wanted = {name: code for name, (_, code) in bad.items()}
    wanted |= {"vanished.png": "unreadable_file", "loop.png": "unreadable_file"}
    assert {name: row["problem"]["code"] for name, row in rows.items() if row["problem"]} == wanted
    for name in wanted:
        assert name in done.out


def test_mode_samples_and_model_are_passed_on(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    options = ("--url", url, "--policy", policy, "--csv", file, "--model", "tiny")
    assert triage(folder, *options, "--mode", "det").status == 0
    assert {row["mode"] for row in rows_in(file)} == {"det"}
    assert triage(folder, *options, "--samples", "2").status == 0
    assert {row["samples"] for row in rows_in(file)} == {"2"}
    assert {row["entropy_standard_error"] for row in rows_in(file)} == {""}
    assert triage(folder, *options, "--samples", "auto").status == 0
    assert all(float(row["entropy_standard_error"]) >= 0 for row in rows_in(file))
    assert all(1 <= int(row["samples"]) <= 16 for row in rows_in(file))


def test_a_policy_for_other_classes_decides_nothing(folder: Path, url: str) -> None:
    done = triage(folder, "--url", url)
    assert (done.status, "akiec" in done.out) == (1, True)


def test_the_report_is_written_of_all_rows(
    folder: Path, url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    stand_in = SimpleNamespace(write_report=lambda *arguments: written.append(arguments))
    monkeypatch.setitem(sys.modules, "eulerlora_client.report.html", stand_in)  # type: ignore[arg-type]
    path = tmp_path / "report.html"
    assert triage(folder, "--url", url, "--policy", policy, "--report", path).status == 0
    ((where, rows, _, made_at, classes),) = written
    assert (where, len(rows), made_at.tzinfo is not None) == (path, 3, True)
    assert [each.description for each in classes] == ["BKL", "MEL", "NV"]


def test_the_files_are_written_although_nobody_reads_the_table(
    folder: Path, url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("eulerlora_client.commands.triage.show", closed)
    file = tmp_path / "rows.csv"
    with pytest.raises(BrokenPipeError):
        triage_command.callback(  # type: ignore[misc]
            (folder,), url, None, policy, "det", None, None, file, None, None, 1
        )
    assert len(rows_in(file)) == 3


def test_no_picture_and_no_other_output_is_overwritten(
    folder: Path, url: str, tmp_path: Path
) -> None:
    picture_file, file = folder / "1.png", tmp_path / "rows"
    before = picture_file.read_bytes()
    done = triage(folder, "--url", url, "--csv", picture_file)
    assert (done.status, "is one of the pictures" in done.err) == (2, True)
    assert picture_file.read_bytes() == before
    done = triage(folder, "--url", url, "--csv", file, "--report", file)
    assert (done.status, "another output" in done.err) == (2, True)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_key_file_without_a_key_is_wrong_usage(folder: Path, tmp_path: Path, content) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    done = triage(folder, "--key-file", key)
    assert (done.status, len(done.err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "det", "--samples", "4"),
        ("--samples", "0"),
        ("--samples", "Auto"),
        ("--concurrency", "0"),
        ("--url", "localhost:8000"),
        ("--csv", "nowhere/rows.csv"),
        ("--policy", "nowhere.toml"),
        ("nowhere.png",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(folder: Path, options: tuple[str, ...]) -> None:
    assert triage(folder, *options).status == 2


def test_a_key_that_cannot_be_one_is_wrong_usage_and_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_KEY", "two words")
    done = triage(folder)
    assert (done.status, "two words" in done.err) == (2, False)


def test_nobody_to_ask_is_one_line_and_leaves_earlier_files_alone(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("of yesterday")
    done = triage(folder, "--url", "http://127.0.0.1:1", "--csv", file)
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("eulerlora: No service can be reached: nothing")
    assert file.read_text() == "of yesterday"


def test_a_model_that_is_not_served_is_one_line(folder: Path, url: str) -> None:
    done = triage(folder, "--url", url, "--model", "other")
    assert (done.status, done.out, "No such model" in done.err) == (1, "", True)


def test_no_image_at_all_is_one_line(tmp_path: Path, url: str) -> None:
    done = triage(tmp_path, "--url", url)
    assert (done.status, "found 0 other files and none" in done.err) == (1, True)


def test_an_interrupted_run_keeps_what_it_knows_and_says_what_it_did_not_ask(
    folder: Path, url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(display: Display) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "advance", interrupted)
    file = tmp_path / "rows.csv"
    done = triage(folder, "--url", url, "--policy", policy, "--csv", file)
    assert (done.status, done.err.splitlines()[-1]) == (1, "eulerlora: interrupted")
    assert [row["problem"] for row in rows_in(file)] == ["", "not_asked", "not_asked"]
    assert "3 files: " in done.out


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_during_a_question_ends_the_run_with_its_files_written(
    script, answered, folder: Path, policy: Path, tmp_path: Path, number: int, status: int
) -> None:
    asked, go_on = threading.Event(), threading.Event()
    script.reply((200, {}, json.dumps(DETAILS).encode()), answered())
    script.before_post = lambda: (asked.set(), go_on.wait())
    file = tmp_path / "rows.csv"
    code = (
        "from eulerlora import command_line;"
        "from eulerlora_client.commands.triage import triage_command;"
        "command_line.program = triage_command; command_line.main()"
    )
    words = (folder, "--url", script.url, "--policy", policy, "--csv", file, "--model", "tiny")
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert asked.wait(120)
        process.send_signal(number)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        go_on.set()
    assert process.returncode == status
    assert [row["problem"] for row in rows_in(file)] == ["not_asked"] * 3
    assert "3 not assessed" in out
