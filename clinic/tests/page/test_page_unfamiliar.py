"""The triage page in a browser: unfamiliar images, and images that differ from the calibration."""

from typing import Any

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import fractal, lesion
from eulerlora_clinic.policy.results import REASONS, TITLES
from tests.server_process import serving

pytestmark = pytest.mark.browser

SHIFTED = 4 * 8  # four blocks of the shift monitor
SHOWN = {"too_small", "too_dark", "too_bright", "blurred", "unfamiliar", "far"}
DIFFER = "The images here differ from those that the thresholds of tiny were checked on (home)."


def shown_text(page: Any) -> str:
    """The text of all cards, with everything opened."""
    for summary in page.locator(".card summary:visible").all():
        summary.click()
    text: str = page.locator("#groups").inner_text()
    return text


def test_an_unfamiliar_image_has_no_percentage(go) -> None:
    with go() as visit:
        visit.add(fractal())
        visit.wait(1)
        card = visit.card("fractal.png")
        (answer,) = visit.answers()
        expect(card.locator(".verdict-title")).to_have_text(TITLES["unfamiliar"])
        expect(card).to_have_attribute("data-state", "unfamiliar")
        expect(card.locator(".verdict .reasons")).to_contain_text(REASONS["unfamiliar"])
        hidden = [one["words"] for one in answer["reasons"] if one["code"] not in SHOWN]
        assert not any(words in card.inner_text() for words in hidden)
        text, _, origin = shown_text(visit.page).partition("Origin of this result")
        distance = answer["prediction"]["ood_scores"]["feature_distance"]
        expect(card).to_contain_text(
            f"Feature distance {distance['value']:.3f}, threshold {distance['threshold']:.3f} "
            "Above its threshold"
        )
        assert "%" not in text
        assert "Unlike the images" in text
        assert answer["prediction"]["request_id"] in origin
        assert f"{answer['prediction']['msp']:.3f}" not in text


def test_an_unfamiliar_image_of_another_model_has_no_percentage(go) -> None:
    def answer(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"unfamiliar": True})

    with go() as visit:
        visit.page.get_by_label("Model", exact=True).select_option("tiny")
        visit.page.route("**/predict?*", answer)
        visit.add(lesion("one.jpg"), lesion("two.jpg", "even"))
        visit.wait(2)
        visit.page.get_by_role("button", name="Open all").click()
        expect(visit.page.locator(".group[data-state=unfamiliar] article")).to_have_count(2)
        assert "%" not in shown_text(visit.page)


def test_unfamiliar_rows_say_why_on_a_phone_and_far_ones_are_the_last(go) -> None:
    def answer(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        if body["quality"]["width"] == 400:  # the house
            for code in ("far", "target_classes"):
                body["reasons"].append({"code": code, "words": REASONS[code]})
        else:
            body["reasons"] = [one for one in body["reasons"] if one["code"] != "far"]
        route.fulfill(response=response, json=body)

    with go(width=390) as visit:
        visit.page.route("**/triage?*", answer)
        visit.add(fractal("a house.png"), fractal("few pixels.png", (90, 70)))
        visit.wait(2)
        rows = visit.page.locator(".group[data-state=unfamiliar] .row")
        expect(rows.locator(".row-name")).to_have_text(["few pixels.png", "a house.png"])
        expect(rows.locator(".row-note").first).to_be_visible()
        expect(rows.first).to_contain_text(REASONS["unfamiliar"])
        expect(rows.last).to_contain_text("It is so far from all")
        expect(rows.last).not_to_contain_text("urgent threshold")
        image = rows.first.locator(".row-image").bounding_box()
        assert image["width"] > image["height"]  # as most pictures, which fill it


@pytest.mark.slow
def test_a_notice_tells_that_images_differ_from_the_calibration(go, flags_all) -> None:
    with serving(flags_all) as server:
        server.wait_for("/readyz", 200)
        with go(server.url) as visit:
            notice = visit.page.get_by_text(DIFFER)
            expect(visit.page.locator("#passes option").first).to_be_attached()
            expect(notice).to_have_count(0)
            visit.add(*(lesion(f"{number}.jpg") for number in range(SHIFTED)))
            visit.wait(SHIFTED)
            expect(notice).to_be_visible()
            expect(notice).to_contain_text("eulerlora site fit")
            visit.add(lesion("next.jpg"))
            visit.wait(SHIFTED + 1)
            expect(visit.page.get_by_text("eulerlora site fit")).to_have_count(1)  # not per image
            visit.page.get_by_role("button", name="About the model").click()
            row = visit.page.get_by_role("row", name="highest probability (MSP)")
            expect(row).to_contain_text("alarm")
            visit.page.reload()
            expect(notice).to_be_visible()
