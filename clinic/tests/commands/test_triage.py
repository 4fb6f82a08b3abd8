"""`eulerlora triage`: one row per file, and an exit status."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from clinic.tests.runs import mel_policy, mel_policy_file, result_of
from eulerlora_client import TriageClient
from eulerlora_clinic.policy.policy import default_policy_text
from eulerlora_clinic.policy.results import policy_description
from eulerlora_contract.answers import Disposition, PredictionSet, TriageResult
from tests.eulerlora_client.conftest import Reply, ScriptedServer, problem_reply
from tests.eulerlora_client.runs import DETAILS, random_png
from tests.program import run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(live: int) -> str:
    return f"http://127.0.0.1:{live}"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy for the tiny model."""
    return mel_policy_file(tmp_path / "policy.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three images and a text file."""
    folder = tmp_path / "lesions"
    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(("1.png", "2.png", "more/3.png")):
        (folder / name).write_bytes(random_png(number))
    (folder / "notes.txt").touch()
    return folder


def reply_of(body: BaseModel) -> Reply:
    return 200, {"Content-Type": "application/json"}, body.model_dump_json().encode()


POLICY_REPLY = reply_of(policy_description(mel_policy()))


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        return list(csv.DictReader(lines))


def test_every_image_of_a_folder_gets_a_decision(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    file, report = tmp_path / "rows.csv", tmp_path / "report.html"
    outputs = ("--csv", file, "--report", report, "--language", "de", "--strip-metadata")
    done = run("triage", folder, "--url", url, "--policy", policy, *outputs)
    assert done.status == 0, done.err
    assert ".txt: 1" in done.err
    assert "3 Dateien: " in done.out
    assert "kein Medizinprodukt" in done.out
    rows, options = rows_in(file), mel_policy().evidence[0].options
    assert [Path(row["file"]).name for row in rows] == ["1.png", "2.png", "3.png"]
    assert report.read_text().count('<tbody class="result') == 3
    assert '<html lang="de">' in report.read_text()
    for row in rows:
        assert (row["mode"], row["samples"]) == (options.mode, str(options.samples))
        assert row["disposition"]
        assert row["policy_hash"].startswith("sha256:")


def test_images_of_one_lesion_get_one_disposition(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    table, file = folder / "lesions.csv", tmp_path / "rows.csv"
    table.write_text("file,lesion\n1.png,L1\nmore/3.png,L1\n")
    first, more = tmp_path / "first", folder / "more"
    first.mkdir()
    for name in ("1.png", "2.png"):
        shutil.copy(folder / name, first)
    for images, lesions, names in (
        ([folder / "1.png", folder / "2.png", more], table, ["L1", "", "L1"]),
        ([first, more], "folders", [str(first), str(first), str(more)]),
    ):
        arguments = ("--url", url, "--policy", policy, "--csv", file, "--lesions", lesions)
        done = run("triage", *images, *arguments)
        assert done.status == 0, done.err
        assert "3 files, 2 lesions: " in done.out
        rows = rows_in(file)
        assert [row["lesion"] for row in rows] == names
        assert all(bool(row["lesion_disposition"]) is bool(row["lesion"]) for row in rows)
        assert done.out.count(".png") == 2


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("name,lesion\n1.png,L1\n", "columns file and lesion"),
        ("file,lesion\nother.png,L1\n", "line 2: other.png is none of the images"),
        ("file,lesion\n1.png,L1\n1.png,L2\n", "line 3: 1.png has another lesion"),
        ("file,lesion\n1.png,\n", "line 2: expected a file and a lesion"),
        (None, "expected a CSV file"),
    ],
)
def test_a_wrong_table_of_lesions_is_refused(
    folder: Path, tmp_path: Path, table: str | None, expected: str
) -> None:
    file = folder / "lesions.csv"
    if table is not None:
        file.write_text(table)
    done = run("triage", folder / "1.png", "--lesions", file)
    assert done.status == 2
    assert expected in done.err


def test_images_beside_the_folders_of_lesions_are_refused(folder: Path) -> None:
    done = run("triage", folder, "--lesions", "folders")
    assert done.status == 2
    assert f"{folder / 'more'} with images is in {folder}, which has images too" in done.err


def test_the_coverage_is_asked_for(
    folder: Path, server: ScriptedServer, policy: Path, tmp_path: Path
) -> None:
    sets = {"labels": ["mel"], "coverage": 0.9, "unit": "lesion", "calibrated_on": "here"}
    details = (200, {}, json.dumps(DETAILS).encode())
    result = result_of(Disposition.ROUTINE)
    changed = {"prediction_set": PredictionSet.model_validate(sets)}
    prediction = result.prediction.model_copy(update=changed)
    reply = reply_of(result.model_copy(update={"prediction": prediction}))
    server.reply(details, POLICY_REPLY, reply)
    file = tmp_path / "rows.csv"
    arguments = ("--policy", policy, "--model", "tiny", "--coverage", "0.9", "--csv", file)
    done = run("triage", folder / "1.png", "--url", server.url, *arguments)
    assert done.status == 0, done.err
    assert "coverage=0.9" in server.requests[-1].path
    assert [row["prediction_set"] for row in rows_in(file)] == ["mel"]


def test_a_bad_file_has_a_row_with_its_problem_and_the_status_is_1(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    (folder / "cut.png").write_bytes(random_png()[:-100])
    (folder / "large.png").write_bytes(bytes(100_001))
    for name in ("phone.heic", "IMG_0001"):
        (folder / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    (folder / "vanished.png").symlink_to("nowhere")
    (folder / "loop.png").symlink_to("loop.png")
    file = tmp_path / "rows.jsonl"
    done = run("triage", folder, "--url", url, "--policy", policy, "--json-lines", file)
    last_line = done.err.splitlines()[-1]
    assert (done.status, last_line) == (1, "eulerlora: 6 of 9 files have no decision")
    rows = {Path(row["file"]).name: row for row in map(json.loads, file.read_text().splitlines())}
    assert len(rows) == 9
    codes = {name: row["problem"]["code"] for name, row in rows.items() if row["problem"]}
    assert codes == {
        "cut.png": "unusable_image",
        "large.png": "body_too_large",
        "phone.heic": "unsupported_media",
        "IMG_0001": "unsupported_media",
        "vanished.png": "unreadable_file",
        "loop.png": "unreadable_file",
    }
    for name in codes:
        assert name in done.out


def test_mode_samples_and_model_are_sent(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    options = ("--url", url, "--policy", policy, "--csv", file, "--model", "tiny")
    assert run("triage", folder, *options, "--mode", "det").status == 0
    assert {row["mode"] for row in rows_in(file)} == {"det"}
    assert run("triage", folder, *options, "--samples", "2").status == 0
    assert {row["samples"] for row in rows_in(file)} == {"2"}
    assert {row["rows"] for row in rows_in(file)} == {""}
    assert run("triage", folder, *options, "--samples", "AUTO").status == 0
    assert all(int(row["rows"]) == int(row["trajectories"]) for row in rows_in(file))
    assert all(row["samples"] in {"1", "2", "4"} for row in rows_in(file))


def test_a_policy_for_other_classes_is_one_line_before_a_file_is_sent(
    folder: Path, url: str, tmp_path: Path
) -> None:
    (tmp_path / "other.toml").write_text(default_policy_text())
    done = run("triage", folder, "--url", url, "--policy", tmp_path / "other.toml")
    assert (done.status, done.out, "akiec" in done.err) == (1, "", True)


def test_without_a_policy_file_the_service_decides(folder: Path, url: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert run("triage", folder, "--url", url, "--json-lines", file).status == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["policy"]["hash"] for row in rows} == {mel_policy().hash}
    with TriageClient(url) as client:
        (result, *_) = client.triage_many([folder / "1.png"])
    assert isinstance(result, TriageResult)
    (first,) = (row for row in rows if row["file"].endswith("1.png"))
    assert first["disposition"] == result.disposition
    assert first["prediction"]["probabilities"] == pytest.approx(
        result.prediction.probabilities, abs=1e-5
    )


def test_the_files_are_written_even_if_stdout_is_closed(
    folder: Path, url: str, policy: Path, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = tmp_path / "rows.csv"
    started(folder, "--url", url, "--policy", policy, "--csv", file, stdout=writer).wait(120)
    os.close(writer)
    assert len(rows_in(file)) == 3


def test_input_images_and_other_outputs_are_not_overwritten(
    folder: Path, url: str, tmp_path: Path
) -> None:
    image, file = folder / "1.png", tmp_path / "rows"
    before = image.read_bytes()
    done = run("triage", folder, "--url", url, "--csv", image)
    assert (done.status, "is an input file" in done.err) == (2, True)
    assert image.read_bytes() == before
    done = run("triage", folder, "--url", url, "--csv", file, "--report", file)
    assert (done.status, "another output" in done.err) == (2, True)
    file.write_text("file;disposition;confirmed\n1.png;routine;nv\n")
    done = run("triage", folder, "--url", url, "--csv", file)
    assert (done.status, "has the column confirmed" in done.err) == (2, True)
    assert file.read_text().endswith(";nv\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "det", "--samples", "4"),
        ("--samples", "0"),
        ("--samples", "many"),
        ("--language", "xx"),
        ("--coverage", "nan"),
        ("--concurrency", "0"),
        ("--url", "localhost:8000"),
        ("--csv", "nowhere/rows.csv"),
        ("--policy", "nowhere.toml"),
        ("nowhere.png",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(folder: Path, options: tuple[str, ...]) -> None:
    assert run("triage", folder, *options).status == 2


def test_an_invalid_key_is_wrong_usage_and_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_KEY", "two words")
    done = run("triage", folder)
    assert (done.status, "two words" in done.err) == (2, False)


def test_an_unreachable_service_is_one_line_and_earlier_files_stay(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("of yesterday")
    done = run("triage", folder, "--url", "http://127.0.0.1:1", "--csv", file)
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("eulerlora: The service cannot be reached: no conn")
    assert file.read_text() == "of yesterday"


def started(*arguments: str | Path, stdout: int) -> "subprocess.Popen[str]":
    """Starts `eulerlora triage ARGUMENTS` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "eulerlora_contract", "triage", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=stdout,
        text=True,
    )


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_during_a_request_ends_the_run_with_its_files_written(
    server: ScriptedServer, folder: Path, policy: Path, tmp_path: Path, number: int, status: int
) -> None:
    requested, released = threading.Event(), threading.Event()
    result = reply_of(result_of(Disposition.ROUTINE))
    server.reply((200, {}, json.dumps(DETAILS).encode()), POLICY_REPLY, result)
    server.before_post = lambda: (requested.set(), released.wait())
    file = tmp_path / "rows.csv"
    options = ("--url", server.url, "--policy", policy, "--csv", file, "--model", "tiny")
    process = started(folder, *options, stdout=subprocess.PIPE)
    try:
        assert requested.wait(120)
        process.send_signal(number)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        released.set()
    assert process.returncode == status
    assert [row["problem"] for row in rows_in(file)] == ["not_asked"] * 3
    assert "3 not assessed" in out


def test_a_proxy_is_named_before_pictures_go_to_it(
    folder: Path, server: ScriptedServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = reply_of(result_of(Disposition.ROUTINE))
    server.reply((200, {}, json.dumps(DETAILS).encode()), POLICY_REPLY, result)
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("http://", "http://user:secret@"))
    arguments = (folder / "1.png", "--policy", policy, "--model", "tiny")
    done = run("triage", *arguments, "--url", "http://clinic.example")
    assert done.status == 0, done.err
    assert f"the proxy {server.url} " in done.err.splitlines()[0]
    no_service = run("triage", *arguments, "--url", "http://127.0.0.1:1")
    assert no_service.status == 1
    assert len(server.requests) == 3


def test_decide_sends_what_was_given_and_prints_what_is_recorded(server: ScriptedServer) -> None:
    recorded = {
        "request_id": "b", "index": 1, "item_id": "b:1", "disposition": "urgent",
        "decision": "routine", "reason": "why\x1b[2J", "diagnosis": "nv",
    }  # fmt: skip
    server.reply((200, {}, json.dumps(recorded).encode()))
    options = ("--reason", "why", "--diagnosis", "nv", "--index", "1", "--url", server.url)
    done = run("decide", "b", "routine", *options)
    assert (done.status, done.err) == (0, "")
    words = r"b:1: suggested urgent, decided routine, reason: why\x1b[2J, diagnosis nv"
    assert done.out == words + "\n"
    (request,) = server.requests
    assert json.loads(request.body) == {
        "request_id": "b", "decision": "routine", "reason": "why", "diagnosis": "nv", "index": 1
    }  # fmt: skip


def test_a_refused_decision_is_one_line_and_status_1(server: ScriptedServer) -> None:
    server.reply(problem_reply(404, "unknown_request"))
    done = run("decide", "r1", "urgent", "--url", server.url)
    assert (done.status, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert run("decide", "r1", "urgent", "--url", "nowhere").status == 2
