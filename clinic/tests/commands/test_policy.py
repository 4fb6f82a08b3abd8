"""`eulerlora policy show`, `check` and `eulerlora monitor`: outputs, exit status and options."""

import asyncio
import os
import re
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clinic.tests.audit_entries import SECRET, audit_entry, verified
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy.policy import (
    Decision,
    default_policy,
    default_policy_text,
    parse_policy,
)
from eulerlora_clinic.policy.results import NOT_MEASURED, card_section, performance_text
from eulerlora_contract import program
from eulerlora_contract.answers import Disposition, Reason
from tests.program import Completed, refusal, run


def test_show_prints_the_packaged_policy_unchanged() -> None:
    done = run("policy", "show")
    assert (done.status, done.out) == (0, default_policy_text())


def test_show_prints_the_measured_performance_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(default_policy_text())
    shown = performance_text(default_policy())
    for arguments in (["--performance"], [path, "--performance"]):
        done = run("policy", "show", *arguments)
        assert (done.status, done.out) == (0, shown + "\n")
    done = run("policy", "show", path, "--card")
    assert done.out == f"{card_section(default_policy())}\n"
    assert done.out.startswith("## Triage\n")
    path.write_text(default_policy_text().split("[[evidence]]")[0])
    done = run("policy", "show", path, "--performance")
    assert done.out == NOT_MEASURED + "\n"
    assert run("policy", "show", path).out == path.read_text()


def test_check_prints_the_version_and_hash_of_the_shown_policy(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(run("policy", "show").out)
    done = run("policy", "check", path)
    policy = default_policy()
    assert done.status == 0
    assert done.out == f"{path}: valid, version {policy.version}, {policy.hash}\n"


def test_check_refuses_an_invalid_policy(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(default_policy_text() + "\n[extra]\n")
    assert re.search(r"own\.toml: .*extra", refusal("policy", "check", path))


def test_check_counts_the_images_that_the_quality_limits_reject(tmp_path: Path) -> None:
    path, folder = tmp_path / "own.toml", tmp_path / "images"
    path.write_text(default_policy_text())
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (3, 120, 160, 3), dtype=np.uint8)
    for index, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    Image.new("RGB", (160, 120), (0, 0, 0)).save(folder / "dark.png")
    (folder / "1-damaged.png").write_bytes((folder / "0.png").read_bytes()[:-100])
    done = run("policy", "check", path, "--images", folder)
    assert done.status == 0
    *counts, unreadable = done.out.splitlines()[1:]
    assert counts == ["1 of 4 images rejected (25.00%)", "too_dark: 1", "blurred: 1"]
    assert unreadable.startswith(f"not read: 1, such as {folder / '1-damaged.png'}: ")


def test_check_refuses_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "own.toml"
    policy.write_text(default_policy_text())
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("the pipe was read"))
    line = refusal("policy", "check", policy, "--images", tmp_path)
    assert re.search(r"pipe\.jpg: .* not a regular file", line)


def test_check_refuses_a_file_that_is_no_image(tmp_path: Path) -> None:
    path, broken = tmp_path / "own.toml", tmp_path / "broken.jpg"
    path.write_text(default_policy_text())
    broken.write_bytes(b"not an image")
    assert "broken.jpg: " in refusal("policy", "check", path, "--images", broken)


def test_the_group_lists_the_commands_of_its_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "eulerlora.policy_commands"
    show = EntryPoint("show", "eulerlora_clinic.commands.policy:show_command", group)
    serve = EntryPoint("serve", "service.commands:serve_command", "eulerlora.commands")
    policy = EntryPoint(
        "policy", "eulerlora_clinic.commands.policy:policy_command", "eulerlora.commands"
    )
    declared = EntryPoints((policy, show, serve))
    monkeypatch.setattr(program, "entry_points", declared.select)
    done = run("policy", "--help")
    assert "show " in done.out
    assert "serve" not in done.out
    assert run("policy", "show").out == default_policy_text()
    assert run("policy", "serve").status == 2


@pytest.fixture
def bare_policy(tmp_path: Path) -> Path:
    """The packaged policy without its evidence."""
    path = tmp_path / "policy.toml"
    path.write_text(default_policy_text().split("[[evidence]]")[0])
    return path


def monitored(path: Path, dispositions: list[str], *options: str | Path) -> Completed:
    reasons = {"refer": "target_possible"}
    rows = [f"{name},{reasons.get(name, '')},mel" for name in dispositions]
    path.write_text("\n".join(["disposition,reasons,confirmed", *rows, ""]))
    return run("monitor", path, *options)


def test_the_report_counts_pictures_where_no_lesions_are_named_and_states_bounds(
    tmp_path: Path,
) -> None:
    done = monitored(
        tmp_path / "o.csv", ["urgent"] * 96 + ["unfamiliar", "refer", "routine", "retake"]
    )
    assert done.status == 0, done.err
    assert done.out.splitlines()[:6] == [
        "pictures confirmed as mel: 100 (the file names no lesions: every picture counts)",
        "  urgent: 96",
        "  unfamiliar, seen by a person: 1",
        "  referred by the target: 1",
        "  missed: 1",
        "  not assessed (retake or no decision): 1",
    ]
    assert "miss rate: 0.0101, at least 0.000" in done.out
    assert "verdict: no alarm" in done.out


def test_an_alarm_is_printed_and_has_exit_status_1(tmp_path: Path) -> None:
    done = monitored(tmp_path / "o.csv", ["urgent"] * 5 + ["routine"] * 5)
    assert done.status == 1
    assert "verdict: ALARM" in done.out
    assert "ALARM at picture " in done.err
    assert len(done.err.splitlines()) == 1


def test_enough_lesions_establish_the_promise(tmp_path: Path) -> None:
    done = monitored(tmp_path / "o.csv", ["urgent"] * 200)
    assert "verdict: no alarm: at most 0.1 is established" in done.out


def test_the_evidence_of_the_policy_is_the_default(tmp_path: Path) -> None:
    policy = default_policy()
    path, outcomes = tmp_path / "o.csv", ["urgent"] * 50
    tolerated = 1 - policy.evidence[0].fit.routine.wanted
    neither = "is neither shown nor excluded"
    done = monitored(path, outcomes[:20])
    assert "confirmed as mel" in done.out
    assert f"verdict: no alarm: more than {tolerated:.3g} {neither}" in done.out
    done = monitored(path, outcomes, "--wanted", "0.8", "--confidence", "0.9")
    assert "verdict: no alarm: at most 0.2 is established" in done.out
    done = monitored(path, outcomes, "--target", "bcc")
    assert "confirmed as bcc: 0" in done.out and "(mel 50)" in done.out


def test_a_policy_without_evidence_needs_a_wanted_share(tmp_path: Path, bare_policy: Path) -> None:
    options = ["--policy", bare_policy]
    done = monitored(tmp_path / "o.csv", ["urgent"], *options)
    assert done.status == 2
    assert "expected --wanted" in done.err
    done = monitored(tmp_path / "o.csv", ["urgent"], *options, "--wanted", "0.9")
    assert done.status == 0


def test_decisions_of_another_policy_are_refused(tmp_path: Path, bare_policy: Path) -> None:
    path = tmp_path / "o.csv"
    policy = parse_policy(bare_policy.read_text(), "policy")
    path.write_text(f"disposition,reasons,confirmed,policy_hash\nurgent,,mel,{policy.hash}\n")
    done = run("monitor", path)
    assert done.status == 1
    assert f"got {policy.hash}" in done.err


def logged(path: Path, *outcomes: tuple[str, str | None, str | None]) -> Path:
    """Writes an audit log with a disposition, decision and diagnosis for each image.

    An image is referred for its target probability.
    """
    with AuditLog(path, SECRET) as log:
        for number, (disposition, decision, diagnosis) in enumerate(outcomes):
            reasons = (Reason.TARGET_POSSIBLE,) if disposition == "refer" else ()
            rule = Decision(Disposition(disposition), reasons, 1, default_policy().hash)
            asyncio.run(
                log.record(audit_entry(f"r{number}", f"{path.name} {number}".encode(), rule))
            )
            if decision or diagnosis:
                answer = asyncio.run(log.answered(f"r{number}", None, "clinic")).answer
                record = {
                    "kind": "decision", "client": "clinic", "request_id": f"r{number}",
                    "answer": answer["mac"], "decision": decision, "reason": None,
                    "diagnosis": diagnosis,
                }  # fmt: skip
                asyncio.run(log.record(record))
    return path


def test_outcomes_are_read_from_the_audit_log_with_how_people_decided(tmp_path: Path) -> None:
    older = logged(tmp_path / "older", ("urgent", "urgent", "mel"), ("routine", "urgent", "mel"))
    present = logged(
        tmp_path / "audit.jsonl", ("unfamiliar", "unfamiliar", None), ("refer", "undo", "mel")
    )
    done = run("monitor", present, older)
    assert done.status == 0, done.err
    assert done.out.splitlines()[:9] == [
        "answers of triage: 4, of this policy: 4",
        "decided by a person: 3, overridden: 1 (0.3333); in the first half 1 of 2, in the second "
        "0 of 1",
        "disposition unfamiliar: 1; in the first half 0 of 2, in the second 1 of 2",
        "lesions confirmed as mel: 3",
        "  urgent: 1",
        "  unfamiliar, seen by a person: 0",
        "  referred by the target: 1",
        "  missed: 1",
        "  not assessed (retake or no decision): 0",
    ]


def test_images_of_one_lesion_in_the_audit_log_have_one_outcome(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, SECRET) as log:
        for pixels, disposition, lesion in (
            (b"one", "routine", "a"), (b"two", "urgent", "a"), (b"two", "unfamiliar", None),
            (b"two", "urgent", "b"), (b"three", "routine", "b"), (b"four", "routine", None),
        ):  # fmt: skip
            rule = Decision(Disposition(disposition), (), 1, default_policy().hash)
            entry = audit_entry(image=pixels, triage=rule)
            asyncio.run(log.record(replace(entry, lesion=lesion)))
        answer = asyncio.run(log.answered("r1", None, "clinic")).answer
        for mac in (answer["mac"], verified(path)[1]["mac"]):
            record = {"kind": "decision", "answer": mac, "decision": None, "reason": None}
            asyncio.run(log.record(record | {"diagnosis": "mel"}))
    done = run("monitor", path)
    assert done.status == 0, done.err
    counts = dict(line.strip().split(": ") for line in done.out.splitlines()[3:8])
    assert counts["lesions confirmed as mel"] == "2"
    assert counts["unfamiliar, seen by a person"] == "1"  # the least of a, b and the one alone
    assert counts["missed"] == "1"  # the fourth image


def test_misses_in_the_audit_log_are_an_alarm_with_status_1(tmp_path: Path) -> None:
    path = logged(tmp_path / "audit.jsonl", *[("routine", None, "mel")] * 10)
    done = run("monitor", path)
    assert done.status == 1
    assert "ALARM at lesion " in done.err


def test_answers_of_another_policy_are_left_out_of_a_log(tmp_path: Path, bare_policy: Path) -> None:
    path = logged(tmp_path / "audit.jsonl", ("urgent", None, "mel"))
    options = ["--policy", bare_policy, "--wanted", "0.9"]
    done = run("monitor", path, *options)
    assert f"got {default_policy().hash}" in done.err


def test_a_damaged_log_and_mixed_files_are_refused(tmp_path: Path) -> None:
    path = logged(tmp_path / "audit.jsonl", ("urgent", None, "mel"))
    table = tmp_path / "o.csv"
    table.write_text("disposition,confirmed\nurgent,mel\n")
    assert run("monitor", path, table).status == 2
    path.write_bytes(path.read_bytes() + b"{}\n")
    done = run("monitor", path)
    assert (done.status, str(path) in done.err) == (1, True)
