"""The advanced options in a browser, and models that the policy does not apply to."""

import json
import shlex
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import lesion
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_clinic.policy.policy import default_policy

pytestmark = pytest.mark.browser

TRAJECTORIES = ("trajectory_probabilities", "trajectory_views", "variance")
EVIDENCE = default_policy().evidence[0]


def queries(visit: Any) -> list[dict[str, list[str]]]:
    """The parameters of the requests for results, in order."""
    urls = (urlsplit(url) for url in visit.requests)
    return [parse_qs(url.query) for url in urls if url.path in ("/triage", "/predict")]


def test_the_default_is_what_the_policy_was_fitted_for(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        (query,) = queries(visit)
        (answer,) = visit.answers()
        expect(visit.page.locator("#notices")).to_be_empty()
        visit.page.get_by_text("Advanced: passes, use via API").click()
        expect(visit.page.locator("#passes option:checked")).to_contain_text("recommended")
    assert query["mode"] == [EVIDENCE.options.mode]
    if EVIDENCE.options.mode == "stoch":
        assert query["samples"] == [str(EVIDENCE.options.samples)]
    assert answer["policy"]["notice"] is None


def test_settings_without_a_threshold_need_consent_that_states_the_consequence(go) -> None:
    with go() as visit:
        page = visit.page
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        page.get_by_text("Advanced: passes, use via API").click()
        locked = page.locator("#passes option", has_text="no thresholds of the policy")
        expect(locked.first).to_be_attached()
        assert all(option.get_attribute("disabled") is not None for option in locked.all())
        expect(
            page.get_by_text("it is unknown how many images of melanoma are called routine")
        ).to_be_visible()
        page.get_by_label("Allow settings without a threshold").check()
        value = locked.first.get_attribute("value")
        page.get_by_label("Passes of the model").select_option(value)
        expect(page.locator("#notices")).to_contain_text("unknown")
        expect(visit.card("lesion.jpg").locator(".statements")).to_contain_text("unknown")
        page.get_by_label("Allow settings without a threshold").uncheck()
        expect(page.locator("#notices")).to_be_empty()
        expect(page.locator("#passes option:checked")).to_contain_text("recommended")
        first, _, last = queries(visit)
        assert first == last


def test_a_change_of_passes_repeats_every_request(go) -> None:
    with go() as visit:
        page = visit.page
        visit.add(lesion("one.jpg"), lesion("two.jpg", "even"))
        visit.wait(2)
        page.get_by_text("Advanced: passes, use via API").click()
        page.get_by_label("Allow settings without a threshold").check()
        fixed = page.locator("#passes option", has_text="fixed").first
        page.get_by_label("Passes of the model").select_option(fixed.get_attribute("value"))
        expect(page.locator("#notices")).to_contain_text("unknown")
        visit.wait(2)
        points = len(read_config(DEFAULT_CHECKPOINT).classes)
        points *= read_config(DEFAULT_CHECKPOINT).adapters.settings.adapters
        expect(visit.card("one.jpg").locator("circle.point")).to_have_count(points)
        assert [query["mode"] for query in queries(visit)[2:]] == [["det"], ["det"]]


def test_another_model_has_neutral_words_and_no_policy(go) -> None:
    with go() as visit:
        page = visit.page
        page.get_by_label("Model", exact=True).select_option("tiny")
        title = page.get_by_role("heading", level=1)
        expect(title).to_have_text("Image classification", use_inner_text=True)
        expect(page.locator("#not-for li")).to_have_count(2)
        expect(page.locator("#licence")).to_be_hidden()
        for words in ("esion", "alignant", "melanoma", "What was measured", "CC BY"):
            assert words not in page.locator("body").inner_text()
        assert page.title() == "Image classification \N{MIDDLE DOT} EulerLoRA"
        visit.add(lesion("image.jpg"))
        visit.wait(1)
        card = visit.card("image.jpg")
        expect(card.locator("circle.point")).to_have_count(3 * 8)
        text = page.locator("body").inner_text()
        for words in ("policy", "malignant", "disposition", "pathway", "Save report", "urgent"):
            assert words not in text
        names = card.locator(".class-name").all_inner_texts()
        shown = sorted(name.strip() for name in names)
        assert shown == ["BKL", "MEL", "NV"]  # the descriptions, without the codes
        expect(card.locator(".statements > div")).to_have_count(3)
        assert not any("/triage?" in url for url in visit.requests)


def test_images_of_another_model_are_grouped_by_certainty(go) -> None:
    passes = [[0.9, 0.05, 0.05]] * 8, [[0.9, 0.05, 0.05]] * 7 + [[0.1, 0.8, 0.1]]
    seeds: list[int] = []  # of the images; a repeated request gets the same answer

    def answer(route: Any) -> None:
        response = route.fetch()
        body = response.json() | {"ood": False, "msp": 0.8}
        if body["seed"] not in seeds:
            seeds.append(body["seed"])
        chosen = passes[seeds.index(body["seed"])]
        route.fulfill(response=response, json=body | {"trajectory_probabilities": chosen})

    with go() as visit:
        page = visit.page
        page.get_by_label("Model", exact=True).select_option("tiny")
        page.route("**/predict?*", answer)
        visit.add(lesion("one.jpg"), lesion("two.jpg", "even"))
        visit.wait(2)
        states = [
            group.get_attribute("data-state") for group in page.locator(".group:visible").all()
        ]
        assert states == ["unclear", "agreed"]
        expect(page.locator("#summary")).to_have_text("2 images: 1 unclear, 1 passes agree")


def test_the_request_for_use_via_api_gives_the_answer_of_the_page(go) -> None:
    file = lesion("lesion.jpg")
    with go() as visit:
        visit.add(file)
        visit.wait(1)
        (shown,) = visit.answers()
        visit.page.get_by_text("Advanced: passes, use via API").click()
        words = shlex.split(visit.page.locator("#curl").inner_text())
        visit.page.locator("#copy-curl").click()
        assert shlex.split(visit.page.evaluate("navigator.clipboard.readText()")) == words
    assert words[:3] == ["curl", "-F", "file=@image.jpg"]
    answer = httpx.post(words[3], files={"file": file["buffer"]}, timeout=600).json()  # type: ignore[dict-item]
    others = {"request_id": "", **dict.fromkeys(TRAJECTORIES)}  # which the page asks for
    assert answer["prediction"] | others == shown["prediction"] | others
    assert json.dumps(answer["policy"]) == json.dumps(shown["policy"])
