"""Identifiers of patients as people write them."""

import pytest

from training.data.identifiers import read_identifiers

PATIENTS = [f"P{number:03}" for number in range(1, 41)]


@pytest.mark.parametrize(
    "missing",
    ["-1", "-1.0", "-9", "0", "00", "0.0", "999", "unknown", "Unknown", "nan", "None", "N/A", "",
     "unbekannt", "?", "no patient", "clinic A", "k.A."],
)  # fmt: skip
@pytest.mark.parametrize("others", [PATIENTS, [name.strip("P") for name in PATIENTS]])
def test_a_value_for_no_patient_is_missing_with_a_note(missing: str, others: list[str]) -> None:
    read = read_identifiers("group", [*others, *[missing] * 40])
    assert read.by_cell[missing] is None
    assert [read.by_cell[name] for name in others] == others
    assert len(read.notes) == 1
    assert f"{missing or 'empty'}: 40" in read.notes[0]


@pytest.mark.parametrize("frequent", ["P000", "7", "P999x", "2019-0"])
def test_a_patient_with_many_rows_stays_one(frequent: str) -> None:
    read = read_identifiers("group", [*PATIENTS, *[frequent] * 40])
    assert read.by_cell[frequent] == frequent
    assert read.notes == []


def test_names_and_numbers_from_zero_are_identifiers() -> None:
    for names in (["0", "1", "2"] * 5, ["Ada", "Ada", "Ada", "Grace", "Linus"]):
        assert set(read_identifiers("group", names).by_cell.values()) == {*names}
    within_patient = read_identifiers("lesion", ["0"] * 40 + ["1"] * 4, numbered=True)
    assert within_patient.by_cell["0"] == "0"


@pytest.mark.parametrize(
    "spellings",
    [
        ("P-001", "p001", "P 1", "P_001"),
        ("PAT_17_2", "pat-17-2", "Pat 017 02"),
        ("12", "012", "12.0", "12.00"),
        ("Müller", "MÜLLER", "mu\u0308ller"),
    ],
)
def test_spellings_of_one_patient_are_united_and_named(spellings: tuple[str, ...]) -> None:
    usual = spellings[-1]
    read = read_identifiers("group", [*spellings, usual, "P-2", "P-02x", "Miller", "13"])
    assert len({read.by_cell[cell] for cell in spellings}) == 1
    assert len({*read.by_cell.values()}) == 5
    assert all(repr(cell) in read.notes[0] for cell in spellings)


def test_other_identifiers_are_not_united() -> None:
    names = ["P1-11", "P11-1", "P111", "1-1", "11", "A1", "B1", "a", "#", "*"]
    assert [*read_identifiers("group", names).by_cell.values()] == names
