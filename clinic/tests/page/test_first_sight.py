"""The triage page in a browser, before and with the first image."""

from typing import Any

import pytest

from clinic.tests.page.browser import expect
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_clinic.policy.policy import default_policy

pytestmark = pytest.mark.browser

EVIDENCE = default_policy().evidence[0]
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


def test_about_the_model_says_what_it_misses_and_shows_thresholds_and_signals(go) -> None:
    config = read_config(DEFAULT_CHECKPOINT)

    def far(route: Any) -> None:
        response = route.fetch()
        policy = response.json()
        policy["policy"]["unfamiliar"] = {"far": 61.5, "ood": True}
        route.fulfill(response=response, json=policy)

    with go() as visit:
        page = visit.page
        page.route("**/triage/policy", far)
        page.reload()
        page.get_by_role("button", name="About the model").click()
        dialog = page.get_by_role("dialog")
        for words in ("not a medical device", "ruling out melanoma", "dermatoscope", "commercial"):
            expect(dialog.get_by_text(words)).to_be_visible()
        for entry in config.classes:
            expect(dialog.get_by_text(entry.description, exact=True)).to_be_visible()
        for measured in EVIDENCE.measured:
            row = dialog.get_by_role("row", name=measured.data.partition(",")[0])
            for counts in (measured.critical, measured.target):
                expect(row).to_contain_text(f"{counts.neither} of {counts.lesions}")
            seen = measured.others.lesions - measured.others.neither
            expect(row).to_contain_text(f"{seen} of {measured.others.lesions:,}")
        expect(dialog.get_by_text("From a distance of 61.50 on")).to_be_visible()
        expect(dialog.get_by_text("highest probability is below its threshold")).to_be_visible()
        dialog.get_by_text("Shift monitor").click()
        expect(dialog.get_by_role("row", name="unfamiliar image")).to_be_visible()
        thresholds = config.in_precision("float32").thresholds
        for threshold in thresholds:
            assert threshold.feature_distance is not None
            sent = float(f"{threshold.feature_distance.threshold:.6g}")
            kept = 100 * threshold.feature_distance.kept
            expect(dialog).to_contain_text(f"{sent:.3f}; {kept:.0f} %")
        (used,) = (one for one in thresholds if one.options == EVIDENCE.options)
        assert used.feature_distance is not None
        limit = page.get_by_text(f"feature distance is above {used.feature_distance.threshold:.2f}")
        expect(limit).to_be_visible()
        dialog.get_by_text("Served here").click()
        expect(dialog.get_by_text("Revision", exact=True)).to_be_visible()


def test_the_whole_model_card_opens_as_english_text(go) -> None:
    card = (DEFAULT_CHECKPOINT / "README.md").read_text("utf-8")
    with go() as visit:
        visit.page.get_by_role("button", name="About the model").click()
        with visit.page.context.expect_page() as opened:
            visit.page.get_by_role("link", name="model card (in English)").click()
        text = opened.value.evaluate("document.body.textContent")
        assert "## Out-of-scope use" in text and card.endswith(text)  # without front matter
        visit.page.keyboard.press("Escape")
        assert visit.page.evaluate("livingBlobUrls()") == 0
