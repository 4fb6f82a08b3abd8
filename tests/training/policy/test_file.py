"""Policy files: only the thresholds, the version and the evidence change."""

import re
from pathlib import Path

import pytest

from eulerlora.errors import SettingsError, StorageError
from tests.full_disk import file_size_limit
from training.policy.file import PolicyRules, read_rules, set_thresholds

TEXT = """\
# our clinic's policy
version = 3 # of June

[malignant]
classes = ["mel", "bcc"] # as agreed
urgent = 0.1   # their sum

[uncertainty]
entropy_nats = 1.2
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(TEXT)
    return path


EVIDENCE = {
    "model": "tiny",
    "fit": {"found": 59},
    "measured": [{"data": "one", "target": {"urgent": 3}}, {"data": "two"}],
}
EVIDENCE_TEXT = """
[evidence]
model = "tiny"

[evidence.fit]
found = 59

[[evidence.measured]]
data = "one"

[evidence.measured.target]
urgent = 3

[[evidence.measured]]
data = "two"
"""


def test_the_rules_are_read() -> None:
    assert read_rules(TEXT, "policy.toml") == PolicyRules(("mel", "bcc"), 0.1, 1.2)


@pytest.mark.parametrize(
    ("old", "new"), [("[malignant]", "[benign]"), ("1.2", '"much"'), ("urgent = 0.1", "")]
)
def test_a_text_without_the_rules_is_refused(old: str, new: str) -> None:
    with pytest.raises(SettingsError, match=r"^policy\.toml: expected a triage policy"):
        read_rules(TEXT.replace(old, new), "policy.toml")


def test_setting_the_thresholds_changes_them_and_version_and_evidence_only(policy: Path) -> None:
    assert set_thresholds(policy, 0.0625, 1.5, EVIDENCE) == 4
    changed = TEXT.replace("version = 3", "version = 4").replace("urgent = 0.1", "urgent = 0.0625")
    changed = changed.replace("entropy_nats = 1.2", "entropy_nats = 1.5")
    assert policy.read_text() == changed + EVIDENCE_TEXT


def test_new_evidence_replaces_old_evidence(policy: Path) -> None:
    set_thresholds(policy, 0.0625, 1.5, EVIDENCE)
    assert set_thresholds(policy, 0.125, 1.25, {"model": "large", "fit": {"found": 7}}) == 5
    text = policy.read_text()
    assert text.endswith('\n[evidence]\nmodel = "large"\n\n[evidence.fit]\nfound = 7\n')
    assert "measured" not in text
    assert "# their sum" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("[malignant]", "[benign]"), "expected a triage policy"),
        (TEXT.replace("version = 3", 'version = "three"'), "expected a triage policy"),
        (TEXT.replace("[uncertainty]\nentropy_nats = 1.2", ""), "expected a triage policy"),
        ("version = ", "expected TOML in UTF-8, got a syntax error in line 1"),
        ("malignant = 3", "expected a triage policy"),
    ],
)
def test_a_file_that_is_not_a_policy_is_refused(policy: Path, text: str, message: str) -> None:
    policy.write_text(text)
    with pytest.raises(SettingsError, match=rf"^{re.escape(str(policy))}: {message}"):
        set_thresholds(policy, 0.0625, 1.5, EVIDENCE)
    assert policy.read_text() == text


def test_a_full_disk_leaves_the_policy_unchanged(policy: Path) -> None:
    with file_size_limit(64), pytest.raises(StorageError, match=str(policy)):
        set_thresholds(policy, 0.0625, 1.5, EVIDENCE)
    assert policy.read_text() == TEXT
    assert list(policy.parent.iterdir()) == [policy]
