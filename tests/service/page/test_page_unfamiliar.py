"""The triage page in a browser: unfamiliar images, and images that differ from the calibration."""

import pytest

from eulerlora.checkpoint import DEFAULT_CHECKPOINT, read_config
from eulerlora_client.policy.wording import REASONS, TITLES
from tests.damaged_checkpoints import edited
from tests.server_process import serving
from tests.service.page.browser import expect
from tests.service.page.lesions import fractal, lesion

pytestmark = pytest.mark.browser

FLAGS_ALL = {
    "mode": "stoch",
    "samples": 4,
    "msp": 1.0,
    "kept": 0.95,
    "images": 1000,
    "data": "home",
}
DIFFER = "The images here differ from those that the thresholds of tiny were checked on (home)."
SAYS_NOTHING = "its figures say nothing about this image"


def test_the_probabilities_of_an_unfamiliar_image_are_collapsed(go) -> None:
    with go() as visit:
        visit.add(fractal(), lesion("lesion.jpg"))
        card = visit.card("fractal.png")
        expect(card.locator(".verdict-title")).to_have_text(TITLES["unfamiliar"])
        expect(card).to_have_attribute("data-state", "unfamiliar")
        expect(card).to_contain_text(REASONS["unfamiliar"])
        expect(card).to_contain_text(SAYS_NOTHING)
        expect(card.locator(".class-chart")).to_be_hidden()
        card.get_by_text("Show the probabilities").click()
        expect(card.locator(".class-chart")).to_be_visible()
        expect(visit.page.locator("#summary")).to_contain_text("1 unfamiliar")
        familiar = visit.card("lesion.jpg")
        expect(familiar.locator(".class-chart")).to_be_visible()
        assert SAYS_NOTHING not in familiar.inner_text()


def test_a_card_shows_the_feature_distance_and_its_threshold(go) -> None:
    with go() as visit:
        visit.add(fractal(), lesion("lesion.jpg"))
        for name, side in (("fractal.png", "above"), ("lesion.jpg", "not above")):
            expect(visit.card(name)).to_contain_text(f", {side} the threshold: the features are")
        scores = [answer["prediction"]["ood_scores"] for answer in visit.answers()]
        for distance in (score["feature_distance"] for score in scores):
            name = "fractal.png" if distance["flagged"] else "lesion.jpg"
            expect(visit.card(name)).to_contain_text(
                f"Feature distance {distance['value']:.3f} against {distance['threshold']:.3f}"
            )


def test_the_model_dialog_lists_the_thresholds_and_the_signals_of_the_monitor(go) -> None:
    with go() as visit:
        visit.page.get_by_role("button", name="About the model").click()
        dialog = visit.page.get_by_role("dialog")
        expect(dialog).to_contain_text("compared with the calibration images")
        expect(dialog.get_by_role("row", name="unfamiliar image")).to_be_visible()
        for threshold in read_config(DEFAULT_CHECKPOINT).thresholds:
            assert threshold.feature_distance is not None
            sent = float(f"{threshold.feature_distance.threshold:.6g}")
            expect(dialog).to_contain_text(f"{sent:.3f}; 95 %")


@pytest.mark.slow
def test_a_notice_tells_that_images_differ_from_the_calibration(go, checkpoint_copy) -> None:
    edited("config.json", lambda fields: fields.update(thresholds=[FLAGS_ALL]))(checkpoint_copy)
    with serving(checkpoint_copy) as server:
        server.wait_for("/readyz", 200)
        with go(server.url) as visit:
            notice = visit.page.get_by_text(DIFFER)
            expect(visit.page.locator("#samples option")).to_have_count(8)
            expect(notice).to_have_count(0)
            visit.add(*(lesion(f"{number}.jpg") for number in range(12)))
            expect(notice).to_be_visible()
            expect(notice).to_contain_text("eulerlora site fit")
            visit.add(lesion("next.jpg"))
            expect(visit.card("next.jpg")).to_contain_text("eulerlora site fit checks them")
            visit.page.get_by_role("button", name="About the model").click()
            row = visit.page.get_by_role("row", name="highest probability (MSP)")
            expect(row).to_contain_text("alarm")
            visit.page.reload()
            expect(notice).to_be_visible()
