"""The triage page in a browser, before and with the first image."""

import pytest

from eulerlora.checkpoint.files import CARD_FILE, DEFAULT_CHECKPOINT, read_config
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.results import WARNING, performance
from service.routes.page import data_name
from tests.server_process import serving
from tests.service.audit_entries import SECRET
from tests.service.page.browser import expect

pytestmark = pytest.mark.browser

EXAMPLES = {
    "An even spot": "example-even.jpg",
    "An irregular spot": "example-irregular.jpg",
    "A house, no lesion": "example-house.jpg",
}


def test_the_page_says_what_it_is_for_and_what_was_measured_before_any_image(go) -> None:
    policy = default_policy()
    assert policy.evidence is not None
    measured = performance(policy)
    assert measured is not None
    with go() as visit:
        page = visit.page
        expect(page.get_by_role("heading", name="Add images")).to_be_visible()
        disclaimer, explanation = WARNING.split(". ", 1)
        expect(page.get_by_text(explanation)).to_be_hidden()
        page.get_by_text(f"{disclaimer}.").click()
        expect(page.get_by_text(explanation)).to_be_visible()
        facts = page.get_by_role("region", name="What was measured")
        for one in policy.evidence.measured:
            row = facts.get_by_role("row", name=data_name(one.data)).first
            expect(row).to_contain_text(f"{100 * one.critical.sensitivity:.1f}".removesuffix(".0"))
            expect(row).to_contain_text(f"{100 * one.others.specificity:.1f}".removesuffix(".0"))
        expect(facts.get_by_text(measured.origin)).to_be_hidden()
        facts.get_by_text("Details of these figures").click()
        expect(facts.get_by_text(measured.origin)).to_be_visible()
        limits = page.get_by_role("region", name="Limits and licence")
        expect(limits).to_contain_text("CC BY-NC 4.0")
        expect(limits).to_contain_text("images other than dermatoscopic images")
        expect(limits).not_to_contain_text("section")
        assert " split" not in page.locator("body").inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_of_the_first_sight_overflows_or_covers_content(go, width) -> None:
    with go(width=width) as visit:
        visit.page.locator("#disclaimer summary").click()
        expect(visit.page.get_by_text("CC BY-NC 4.0").first).to_be_visible()
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        positions = """[...document.querySelectorAll("body *")].filter((element) =>
            ["fixed", "sticky"].includes(getComputedStyle(element).position)).length"""
        assert visit.page.evaluate(positions) == 0


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
        house = next(one for one in visit.answers() if one["disposition"] == "unfamiliar")
        assert house["prediction"]["unfamiliar"]


def test_about_the_model_opens_its_card(go) -> None:
    card = (DEFAULT_CHECKPOINT / CARD_FILE).read_text("utf-8")
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
        for entry in read_config(DEFAULT_CHECKPOINT).classes:
            expect(classes.get_by_text(entry.description)).to_be_visible()
        dialog.get_by_text("Served here").click()
        expect(dialog.get_by_text("Revision", exact=True)).to_be_visible()
        assert "**" not in dialog.inner_text() and "| --" not in dialog.inner_text()


def test_the_page_says_what_this_server_stores(go) -> None:
    with go() as visit:
        page = visit.page
        expect(page.get_by_text("This server stores neither images nor results")).to_be_visible()
        expect(page.get_by_label("Remove metadata")).to_be_checked()
        page.locator("[data-example]").first.click()
        visit.wait(1)
        expect(page.get_by_text("This server stores neither images nor results")).to_be_hidden()
        page.get_by_text("What is stored, and what is sent").click()
        expect(page.get_by_text("Metadata travels with a file unless")).to_be_visible()


@pytest.mark.slow
def test_a_server_with_an_audit_log_says_so(go, checkpoint_folder, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    audit = ("--audit", tmp_path / "audit.jsonl", "--audit-secret", secret)
    with serving(checkpoint_folder, *audit) as server:
        server.wait_for("/readyz", 200)
        with go(server.url) as visit:
            expect(visit.page.get_by_text("Its audit log records every result")).to_be_visible()
            expect(visit.page.get_by_label("Remove metadata")).not_to_be_checked()
