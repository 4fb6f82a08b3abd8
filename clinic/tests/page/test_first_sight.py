"""The triage page in a browser, before and with the first image."""

import pytest

from clinic.tests.page.browser import expect
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config

pytestmark = pytest.mark.browser

EXAMPLES = {
    "An even spot": "example-even.jpg",
    "An irregular spot": "example-irregular.jpg",
    "A house, no lesion": "example-house.jpg",
}


def test_an_example_is_analysed_and_is_not_called_a_photograph(go) -> None:
    with go() as visit:
        page = visit.page
        expect(page.get_by_text("Drawn by a program, not photographs")).to_be_visible()
        for number, (label, name) in enumerate(EXAMPLES.items(), start=1):
            example = page.locator(f"[data-example='{name}']")
            expect(example).to_have_text(label)
            example.click()
            visit.wait(number)
            expect(example).to_be_focused()
            expect(visit.card(name)).to_have_count(1)
        familiar = [not answer["prediction"]["unfamiliar"] for answer in visit.answers()]
        assert familiar == [True, True, False]


def test_about_the_model_opens_its_card_with_thresholds_and_the_signals_of_the_monitor(go) -> None:
    card = (DEFAULT_CHECKPOINT / "README.md").read_text("utf-8")
    headings = [line.removeprefix("## ") for line in card.splitlines() if line.startswith("## ")]
    with go() as visit:
        visit.page.get_by_role("button", name="About the model").click()
        dialog = visit.page.get_by_role("dialog")
        for heading in headings:
            expect(dialog.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        expect(dialog.get_by_text("is not a medical device")).to_be_visible()
        classes = dialog.locator("details").filter(
            has=visit.page.get_by_text("Classes", exact=True)
        )
        config = read_config(DEFAULT_CHECKPOINT)
        for entry in config.classes:
            expect(classes.get_by_text(entry.description)).to_be_visible()
        expect(dialog.get_by_role("row", name="unfamiliar image")).to_be_visible()
        for threshold in config.in_precision("float32").thresholds:
            assert threshold.feature_distance is not None
            sent = float(f"{threshold.feature_distance.threshold:.6g}")
            kept = 100 * threshold.feature_distance.kept
            expect(dialog).to_contain_text(f"{sent:.3f}; {kept:.0f} %")
        dialog.get_by_text("Served here").click()
        expect(dialog.get_by_text("Revision", exact=True)).to_be_visible()
        assert "**" not in dialog.inner_text() and "| --" not in dialog.inner_text()
