"""The benchmark of EulerLoRA in PEFT, and the outcomes of PEFT's own tests."""

from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import own_code
from benchmarks.peft_conformance import outcome_of


def test_the_ratios_are_measured_for_one_and_eight_images() -> None:
    done = CliRunner().invoke(own_code.main, ["--small", "--repeats", "2"])
    assert done.exit_code == 0, done.output
    names = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert names == [
        "8 trajectories, 1 images", "det, 1 images", "8 trajectories, 8 images", "det, 8 images",
    ]  # fmt: skip


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
