"""The card of one image in a browser, and the page with the keyboard alone."""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import broken, lesion, lesion_file, upload
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from tests.browser import TIMEOUT_MS

pytestmark = pytest.mark.browser

CONFIG = read_config(DEFAULT_CHECKPOINT)
CLASSES = "Class probabilities"
FIGURES = "Figures and how to read them"
COPY = """async (text) => {
    const canvas = new OffscreenCanvas(300, 200);
    const paint = canvas.getContext("2d");
    paint.fillStyle = "peachpuff";
    paint.fillRect(0, 0, 300, 200);
    paint.fillStyle = "sienna";
    paint.fillRect(120, 60, 60, 60);
    const content = {"image/png": await canvas.convertToBlob({type: "image/png"})};
    if (text) content["text/plain"] = new Blob([text], {type: "text/plain"});
    await navigator.clipboard.write([new ClipboardItem(content)]);
}"""


def test_a_card_gives_reasons_then_words_then_figures(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        card = visit.card("lesion.jpg")
        (answer,) = visit.answers()
        prediction = answer["prediction"]
        points = len(CONFIG.classes) * prediction["trajectories"]
        expect(card.locator("circle.point")).to_have_count(points)
        expect(card.get_by_text("nats")).to_have_count(3)
        assert "nats" not in card.inner_text() and "MSP" not in card.inner_text()
        card.get_by_text(FIGURES).click()
        text = card.inner_text()
        reasons = [reason["words"] for reason in answer["reasons"]]
        words = [answer["title"], *reasons, answer["pathway"], "Looks like"]
        parts = [
            *words,
            "Do the passes agree?",
            "How familiar is the image?",
            CLASSES,
            "Uncertainty",
            "Familiarity",
        ]
        positions = [text.index(part) for part in parts]
        assert positions == sorted(positions)
        assert f"Expected entropy {prediction['expected_entropy']:.2f}" in text
        assert f"Mutual information {prediction['mutual_information']:.2f}" in text
        assert f"{prediction['seed']}" in text
        log = visit.page.locator("#announcements")
        expect(log).to_contain_text(f"lesion.jpg: {answer['title']}.")
        assert visit.page.evaluate("livingBlobUrls()") == 0


@pytest.mark.parametrize(
    ("probability", "routine", "urgent", "sentences"),
    [
        (0.0804, 0.06, 0.4, ("8.0 %", "low, but above the routine line of 6.0 %.", "from 40 % on",
                             "99 % of the cases of melanoma were above the routine line or "
                             "unfamiliar, and so were 50 % of the harmless ones (home; a case is a "
                             "lesion). Of the urgent cases, 60 % were malignant.")),
        (0.06, 0.0604, 0.4, ("6.00 %", "below the routine line of 6.04 %.", "rules out no disea")),
        (0.5, 0.06, 0.4, ("50 %", "above the urgent line of 40 %.", "goes first")),
    ],
    ids=["above", "just below", "urgent"],
)  # fmt: skip
def test_the_probability_is_compared_with_its_threshold_and_what_it_did_in_tests(
    go, probability, routine, urgent, sentences
) -> None:
    def change(answer: dict[str, Any]) -> None:
        thresholds = {"routine": routine, "urgent": urgent}
        answer["target"] |= {"probability": probability, **thresholds}
        answer["prediction"] |= {"label": "nv", "unfamiliar": False}
        measured = {
            "sensitivity": 0.99, "specificity": 0.5, "predictive_value": 0.6,
            "data": "home, a-b split",
        }  # fmt: skip
        answer["policy"]["measured"][0] |= measured

    with go() as visit:
        visit.change_answers(change)
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        malignant = visit.card("lesion.jpg").locator(".statements > div").nth(1)
        for sentence in sentences:
            expect(malignant).to_contain_text(sentence)


def test_the_views_that_differ_most_are_shown_as_the_model_sees_them(go) -> None:
    right, flipped = 5, 2  # turned to the right; flipped top to bottom

    def seen(answer: dict[str, Any]) -> None:
        mel = list(answer["prediction"]["probabilities"]).index("mel")
        rows = [[0.1] * len(CONFIG.classes) for _ in range(8)]
        for view, probability in ((right, 0.75), (flipped, 0.05)):
            rows[view][mel] = probability
        answer["prediction"] |= {
            "views": 8, "trajectory_views": [*range(8)], "trajectory_probabilities": rows,
            "unfamiliar": False,
        }  # fmt: skip

    with go() as visit:
        visit.change_answers(seen)
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        card = visit.card("lesion.jpg")
        card.get_by_text(FIGURES).click()
        captions = card.locator(".view figcaption")
        expect(captions).to_have_count(2)
        expect(captions.nth(0)).to_contain_text("75")
        expect(captions.nth(1)).to_contain_text("5.0")
        for index, turn in enumerate(("matrix(0, 1, -1, 0, 0, 0)", "matrix(1, 0, 0, -1, 0, 0)")):
            picture = card.locator(".view img").nth(index)
            expect(picture).to_have_css("transform", turn)
            expect(picture).to_have_js_property("complete", True)
            assert picture.evaluate("image => image.naturalWidth") > 0


@pytest.mark.parametrize(
    ("passes", "looks", "word", "sentence"),
    [
        ([[0.9, 0.1], [0.8, 0.2]], "melanoma 85 %, melanocytic nevus 15 %", "Passes agree",
         "All 2 sampled passes put melanoma first"),
        ([[0.9, 0.1], [0.2, 0.8]], "melanoma 55 %, melanocytic nevus 45 %", "Passes disagree",
         "1 puts melanoma first, 1 puts"),
        ([[0.999, 0.001]] * 2, "melanoma 100 %", "Passes agree", "They can be wrong together."),
    ],
)  # fmt: skip
def test_the_card_says_what_the_image_looks_like_and_whether_passes_agree(
    go, passes, looks, word, sentence
) -> None:
    def change(answer: dict[str, Any]) -> None:
        prediction = answer["prediction"]
        mean = [math.fsum(column) / 2 for column in zip(*passes, strict=True)]
        prediction |= {
            "probabilities": dict(zip(("mel", "nv"), mean, strict=True)),
            "trajectory_probabilities": passes,
            "trajectories": 2,
            "label": "mel",
            "msp": mean[0],
            "unfamiliar": False,
        }

    with go() as visit:
        visit.change_answers(change)
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        statements = visit.card("lesion.jpg").locator(".statements > div")
        expect(statements.nth(0).locator("strong")).to_have_text(looks)
        expect(statements.nth(2).locator("strong")).to_have_text(word)
        expect(statements.nth(2)).to_contain_text(sentence)


def test_classes_that_are_whole_numbers_keep_their_passes(go) -> None:
    names = sorted(map(str, range(1, 13)))  # as text: "10" before "2"
    row = [0.89 if name == "10" else 0.01 for name in names]

    def add_classes(route: Any) -> None:
        response = route.fetch(timeout=TIMEOUT_MS)
        model = response.json()
        added = [{"name": name, "description": name} for name in names]
        model["classes"] = added + model["classes"]  # those of the policy stay
        route.fulfill(response=response, json=model)

    def change(answer: dict[str, Any]) -> None:
        answer["prediction"] |= {
            "probabilities": dict(zip(names, row, strict=True)),
            "trajectory_probabilities": [row, row],
            "trajectories": 2,
            "label": "10",
            "msp": 0.89,
            "unfamiliar": False,
        }

    with go() as visit:
        page = visit.page
        expect(page.locator("#passes option").first).to_be_attached()
        page.route("**/models/*", add_classes)
        visit.change_answers(change)
        page.reload()
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        card = visit.card("lesion.jpg")
        statement = "All 2 sampled passes put 10 first"
        expect(card.locator(".statements")).to_contain_text(statement)
        cells = card.locator("table tbody tr").first.locator("th, td")
        expect(cells).to_have_text(["10", "89 %", "89 %", "89 %"])
        page.get_by_role("button", name="Copy as JSON").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        (copied,) = json.loads(page.evaluate("navigator.clipboard.readText()"))
    mean = list(copied["prediction"]["probabilities"].values())
    assert copied["prediction"]["trajectory_probabilities"] == [mean, mean]


def test_a_broken_file_shows_the_reason_and_affects_no_other(go) -> None:
    with go() as visit:
        visit.add(
            broken("broken.jpg"),
            upload("notes.jpg", b"not an image"),
            upload("empty.jpg", b""),
            lesion("good.jpg"),
        )
        visit.wait(4)
        for name in ("broken.jpg", "notes.jpg", "empty.jpg"):
            visit.row(name).click()
        expect(visit.card("empty.jpg")).to_contain_text("The file is empty")
        expect(visit.card("broken.jpg")).to_contain_text("The JPEG data is broken or truncated.")
        expect(visit.card("notes.jpg")).to_contain_text("JPEG, PNG or WebP image")
        expect(visit.card("notes.jpg")).to_contain_text("No preview")
        expect(visit.row("broken.jpg")).to_contain_text("The JPEG data is broken or truncated.")
        expect(visit.card("good.jpg")).to_have_attribute(
            "data-state", visit.answers()[0]["disposition"]
        )
        expect(visit.page.get_by_role("button", name="Retry")).to_have_count(0)  # it cannot help


@pytest.mark.parametrize("strip", [True, False], ids=["without metadata", "as it is"])
def test_a_file_that_disappeared_after_it_was_added_is_named_as_the_cause(
    go, tmp_path: Path, strip
) -> None:
    file = tmp_path / "lesion.jpg"
    file.write_bytes(lesion_file())
    with go() as visit:
        visit.page.get_by_label("Remove metadata").set_checked(strip)
        visit.page.set_input_files("#files", file)
        visit.wait(1)
        file.unlink()
        visit.page.locator("#passes").dispatch_event("change")
        expect(visit.row("lesion.jpg")).to_contain_text("The file cannot be read.")
        expect(visit.page.get_by_role("button", name="Retry")).to_have_count(0)  # it cannot help


def file_chooser(page: Any) -> Any:
    """Opens the file chooser with the space bar, which Chromium may ignore on a slow machine."""
    from playwright.sync_api import TimeoutError as TooSlow  # noqa: PLC0415 - may be missing

    for _ in range(20):
        with suppress(TooSlow), page.expect_file_chooser(timeout=10_000) as choosing:
            page.keyboard.press("Space")
            return choosing.value
    pytest.fail("the space bar opens no file chooser")


def tab_to(page: Any, name: str, role: str = "button") -> Any:
    """Presses Tab until the element has the focus."""
    target = page.get_by_role(role, name=name, exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return target
    pytest.fail(f"Tab does not reach {name}")


def test_the_page_works_with_the_keyboard_alone(go) -> None:
    with go() as visit:
        page = visit.page
        expect(page.locator("#passes option").first).to_be_attached()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the results")).to_be_focused()
        tab_to(page, "About the model")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("melanocytic nevus")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("button", name="About the model")).to_be_focused()
        tab_to(page, "Choose images")
        file_chooser(page).set_files([lesion("lesion.jpg")])
        visit.wait(1)
        tab_to(page, "Copy as JSON")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        card = visit.card("lesion.jpg")
        while not visit.row("lesion.jpg").evaluate("row => row === document.activeElement"):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(card.get_by_text(CLASSES)).to_be_hidden()
        page.keyboard.press("Enter")
        expect(card.get_by_text(CLASSES)).to_be_visible()
        tab_to(page, "Remove lesion.jpg")
        page.keyboard.press("Space")
        expect(page.locator("article")).to_have_count(0)
        expect(page.get_by_role("button", name="Undo")).to_be_focused()


def test_an_image_can_be_pasted(go) -> None:
    with go() as visit:
        visit.page.evaluate(COPY)
        visit.page.keyboard.press("Control+V")
        expect(visit.card("image.png")).to_contain_text("300 \N{MULTIPLICATION SIGN} 200 pixels")


def test_text_that_is_pasted_with_a_picture_into_a_field_is_only_text(go) -> None:
    with go() as visit:
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        visit.page.evaluate(COPY, "Patient 7")
        field = visit.card("lesion.jpg").get_by_label("Identifier")
        field.press("Control+V")
        expect(field).to_have_value("Patient 7")
        visit.wait(1)
        visit.page.get_by_label("Images that are added together").focus()
        visit.page.keyboard.press("Control+V")
        visit.wait(2)
