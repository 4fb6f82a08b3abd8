"""What a person reads in the terminal."""

from io import StringIO

from eulerlora_client.contract.triage import Disposition, Reason
from eulerlora_client.policy.wording import NOT_ASSESSED, NOT_FITTED, TITLES, WARNING
from eulerlora_client.triage.ranking import results_of
from eulerlora_client.triage.run import TriageRow
from eulerlora_client.triage.table import counts, show
from tests.eulerlora_client.runs import gap, mel_policy, row

ROWS = [
    row("routine.png", Disposition.ROUTINE, 0.05),
    gap("broken.png"),
    row("retake.png", Disposition.RETAKE, 0.05, Reason.TOO_DARK),
    row("urgent.png", Disposition.URGENT, 0.3, Reason.MALIGNANT_GROUP),
    row("refer.png", Disposition.REFER, 0.05, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    row("more urgent.png", Disposition.URGENT, 0.6, Reason.MALIGNANT_GROUP),
]
ORDER = ["more urgent", "urgent", "refer", "retake", "broken", "routine"]


def shown(rows: list[TriageRow]) -> str:
    file = StringIO()
    show(rows, mel_policy(), file)
    return file.getvalue()


def test_the_lines_are_in_the_order_of_the_report() -> None:
    assert [each.row.path.stem for each in results_of(ROWS, mel_policy())] == ORDER
    lines = [line for line in shown(ROWS).splitlines() if ".png" in line]
    assert [line.rstrip().split("  ")[-1].strip().removesuffix(".png") for line in lines] == ORDER


def test_each_line_has_the_pathway_what_it_resembles_and_the_reasons() -> None:
    (refer,) = [line for line in shown(ROWS).splitlines() if "refer.png" in line]
    for words in (TITLES[Disposition.REFER], "nv 0.800", "0.50", "high entropy, out of distrib"):
        assert words in refer
    (broken,) = [line for line in shown(ROWS).splitlines() if "broken.png" in line]
    assert NOT_ASSESSED in broken
    assert "it is broken" in broken


def test_under_the_table_stand_the_counts_and_the_warning() -> None:
    counted = counts(results_of(ROWS, mel_policy()))
    assert counted == (
        "6 files: 2 prioritise, 1 refer for review, 1 take the picture again, 1 routine, "
        "1 not assessed"
    )
    words = " ".join(shown(ROWS).split())
    assert words.index(counted) < words.index(NOT_FITTED) < words.index(WARNING)


def test_without_predictions_nothing_is_said_of_a_threshold() -> None:
    assert " ".join(NOT_FITTED.split()) not in " ".join(shown([gap("broken.png")]).split())


def test_names_begin_below_the_folder_that_all_share() -> None:
    text = shown([row(f"/data/wards/{name}/a.png", Disposition.ROUTINE) for name in "12"])
    assert "  1/a.png" in text
    assert "wards" not in text


def test_long_names_are_folded_not_cut() -> None:
    name = "".join(f"part{number}" for number in range(60)) + ".png"
    text = shown([row(name, Disposition.ROUTINE)])
    assert name in "".join("".join(text.split()).split("nv0.8000.50"))


def test_no_name_steers_the_terminal() -> None:
    for name, seen in (("[b]:x:", "[b]:x:"), ("\x1b[2J", "\\x1b[2J")):
        assert seen in shown([row(f"{name}.png", Disposition.ROUTINE)])
