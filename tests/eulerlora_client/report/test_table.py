"""The table on the terminal."""

from io import StringIO

from eulerlora_client.contract.triage import Disposition, Reason
from eulerlora_client.policy.wording import NOT_ASSESSED, NOT_FITTED, TITLES, WARNING
from eulerlora_client.report.table import print_table, summary
from eulerlora_client.triage.ranking import ranked
from eulerlora_client.triage.run import TriageRow
from tests.eulerlora_client.runs import decided, mel_policy, undecided

ROWS = [
    decided("routine.png", Disposition.ROUTINE, 0.05),
    undecided("broken.png"),
    decided("retake.png", Disposition.RETAKE, 0.05, Reason.TOO_DARK),
    decided("urgent.png", Disposition.URGENT, 0.3, Reason.MALIGNANT_GROUP),
    decided("refer.png", Disposition.REFER, 0.05, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    decided("more urgent.png", Disposition.URGENT, 0.6, Reason.MALIGNANT_GROUP),
]
ORDER = ["more urgent", "urgent", "refer", "retake", "broken", "routine"]


def printed(rows: list[TriageRow]) -> str:
    file = StringIO()
    print_table(rows, mel_policy(), file)
    return file.getvalue()


def test_the_lines_are_ranked() -> None:
    lines = [line for line in printed(ROWS).splitlines() if ".png" in line]
    assert [line.rstrip().split("  ")[-1].strip().removesuffix(".png") for line in lines] == ORDER


def test_a_line_has_the_pathway_the_label_and_the_reasons() -> None:
    (refer,) = [line for line in printed(ROWS).splitlines() if "refer.png" in line]
    for text in (TITLES[Disposition.REFER], "nv 0.800", "0.50", "high entropy, out of distrib"):
        assert text in refer
    (broken,) = [line for line in printed(ROWS).splitlines() if "broken.png" in line]
    assert NOT_ASSESSED in broken
    assert "it is broken" in broken


def test_the_counts_and_the_warning_follow_the_table() -> None:
    counts = summary(ranked(ROWS, mel_policy()))
    assert counts == (
        "6 files: 2 prioritise, 1 refer for review, 1 retake the image, 1 routine, 1 not assessed"
    )
    text = " ".join(printed(ROWS).split())
    assert text.index(counts) < text.index(NOT_FITTED) < text.index(WARNING)


def test_without_predictions_there_is_no_note_on_the_threshold() -> None:
    assert NOT_FITTED not in " ".join(printed([undecided("broken.png")]).split())


def test_names_start_below_the_common_folder() -> None:
    text = printed([decided(f"/data/wards/{name}/a.png", Disposition.ROUTINE) for name in "12"])
    assert "  1/a.png" in text
    assert "wards" not in text


def test_long_names_are_folded_and_not_cut() -> None:
    name = "".join(f"part{number}" for number in range(60)) + ".png"
    text = printed([decided(name, Disposition.ROUTINE)])
    assert name in "".join("".join(text.split()).split("nv0.8000.50"))


def test_a_name_cannot_control_the_terminal() -> None:
    for name, expected in (("[b]:x:", "[b]:x:"), ("\x1b[2J", "\\x1b[2J")):
        assert expected in printed([decided(f"{name}.png", Disposition.ROUTINE)])
