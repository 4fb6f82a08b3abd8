"""Policy files: only the threshold, the version and the evidence change."""

import re
from pathlib import Path

import pytest

from eulerlora.errors import SettingsError, StorageError
from tests.full_disk import file_size_limit
from training.policy.file import read_rules, set_urgent

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


def test_rules_are_read(policy: Path) -> None:
    rules = read_rules(policy)
    assert (rules.malignant, rules.entropy_nats) == (("mel", "bcc"), 1.2)


def test_setting_the_threshold_changes_version_and_evidence_only(policy: Path) -> None:
    assert set_urgent(policy, 0.0625, {"model": "tiny", "found": 59}) == 4
    changed = TEXT.replace("version = 3", "version = 4").replace("urgent = 0.1", "urgent = 0.0625")
    assert policy.read_text() == changed + '\n[evidence]\nmodel = "tiny"\nfound = 59\n'


def test_new_evidence_replaces_old_evidence(policy: Path) -> None:
    set_urgent(policy, 0.0625, {"model": "tiny", "old": 1})
    assert set_urgent(policy, 0.125, {"model": "large", "new": 2}) == 5
    text = policy.read_text()
    assert text.endswith('\n[evidence]\nmodel = "large"\nnew = 2\n')
    assert "# their sum" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("[malignant]", "[benign]"), "expected a triage policy"),
        (TEXT.replace("1.2", '"much"'), "expected a triage policy"),
        ("version = ", "expected TOML in UTF-8, got a syntax error in line 1"),
        ("malignant = 3", "expected a triage policy"),
    ],
)
def test_a_file_that_is_not_a_policy_is_refused(policy: Path, text: str, message: str) -> None:
    policy.write_text(text)
    with pytest.raises(SettingsError, match=rf"^{re.escape(str(policy))}: {message}"):
        read_rules(policy)


def test_a_full_disk_leaves_the_policy_unchanged(policy: Path) -> None:
    with file_size_limit(64), pytest.raises(StorageError, match=str(policy)):
        set_urgent(policy, 0.0625, {"model": "tiny"})
    assert policy.read_text() == TEXT
    assert list(policy.parent.iterdir()) == [policy]
