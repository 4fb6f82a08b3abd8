"""The benchmark of EulerLoRA in PEFT, and the outcomes of PEFT's own tests."""

from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import own_code
from benchmarks.peft_conformance import outcome_of


def test_the_ratios_are_measured_for_one_and_eight_images() -> None:
    done = CliRunner().invoke(own_code.main, ["--small", "--repeats", "2"])
    assert done.exit_code == 0, done.output
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[2].strip() for row in rows] == ["1", "1", "8", "8"]
    assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ("", "passed"),
        ("<skipped/>", "skipped by PEFT"),
        ('<failure message="SettingsError: use_dora"/>', "refused"),
        ('<error message="failed on setup">OSError: no connection</error>', "needs the Hub"),
        ('<failure message="AssertionError"/>', "failed"),
    ],
)
def test_a_test_of_peft_has_one_outcome(content: str, outcome: str) -> None:
    assert outcome_of(ElementTree.fromstring(f"<testcase>{content}</testcase>")) == outcome
