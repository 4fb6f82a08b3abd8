"""`eulerlora monitor`: its report, its exit status and its options."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eulerlora_client.commands.policy import monitor_command, promise_of
from eulerlora_client.policy.policy import default_policy, default_policy_text, parse_policy


@pytest.fixture
def bare_policy(tmp_path: Path) -> Path:
    """The packaged policy without its evidence."""
    path = tmp_path / "policy.toml"
    path.write_text(default_policy_text().split("[evidence")[0])
    return path


def monitored(path: Path, dispositions: list[str], *options: str) -> Result:
    rows = [f"{disposition},mel" for disposition in dispositions]
    path.write_text("\n".join(["disposition,confirmed", *rows, ""]))
    return CliRunner().invoke(monitor_command, [str(path), *options])


def test_the_report_counts_lesions_and_states_bounds(tmp_path: Path) -> None:
    done = monitored(tmp_path / "o.csv", ["urgent"] * 97 + ["unfamiliar", "routine", "retake"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:5] == [
        "lesions confirmed as mel: 100",
        "  urgent: 97",
        "  unfamiliar, seen by a person: 1",
        "  missed: 1",
        "  not assessed (retake or no decision): 1",
    ]
    assert "miss rate: 0.0101, at least 0.000" in done.stdout
    assert "verdict: no alarm" in done.stdout


def test_an_alarm_is_printed_and_has_exit_status_1(tmp_path: Path) -> None:
    done = monitored(tmp_path / "o.csv", ["urgent"] * 5 + ["routine"] * 5)
    assert done.exit_code == 1
    assert "verdict: ALARM" in done.stdout
    assert "ALARM at lesion " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_enough_lesions_establish_the_promise(tmp_path: Path) -> None:
    done = monitored(tmp_path / "o.csv", ["urgent"] * 200)
    assert "verdict: no alarm: at most 0.05 is established" in done.stdout


def test_the_evidence_of_the_policy_is_the_default() -> None:
    policy = default_policy()
    assert policy.evidence is not None
    promise = promise_of(policy, None, None, 0.9)
    assert (promise.target, promise.confidence) == (policy.evidence.target, 0.9)
    assert promise.tolerated == pytest.approx(1 - policy.evidence.wanted)
    assert promise_of(policy, "bcc", 0.8, 0.9).target == "bcc"


def test_a_policy_without_evidence_needs_target_and_wanted(
    tmp_path: Path, bare_policy: Path
) -> None:
    options = ["--policy", str(bare_policy)]
    done = monitored(tmp_path / "o.csv", ["urgent"], *options)
    assert done.exit_code == 2
    assert "expected --target and --wanted" in done.stderr
    done = monitored(tmp_path / "o.csv", ["urgent"], *options, "--target", "mel", "--wanted", "0.9")
    assert done.exit_code == 0


def test_decisions_of_another_policy_are_refused(tmp_path: Path, bare_policy: Path) -> None:
    path = tmp_path / "o.csv"
    policy = parse_policy(bare_policy.read_text(), "policy")
    path.write_text(f"disposition,confirmed,policy_hash\nurgent,mel,{policy.hash}\n")
    done = CliRunner().invoke(monitor_command, [str(path)])
    assert done.exit_code == 1
    assert f"got {policy.hash}" in str(done.exception)
