"""The page in other languages: no text is outside the catalogue, and a choice stays."""

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import broken, lesion, upload
from clinic.tests.pseudo_language import outside, pseudo_language
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora_clinic.language import languages
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_clinic.policy.results import TITLES
from eulerlora_clinic.service.page import page_files

pytestmark = pytest.mark.browser

SHOWN = """() => {
    const isTranslated = (element) => element.checkVisibility()
        && element.closest('script, style, [translate=no], [lang=en]') === null;
    const texts = [document.title];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const { parentElement, data } = walker.currentNode;
        if (isTranslated(parentElement)) texts.push(data);
    }
    for (const name of ["aria-label", "title", "alt", "placeholder", "data-title"]) {
        for (const element of document.body.querySelectorAll(`[${name}]`)) {
            if (isTranslated(element)) texts.push(element.getAttribute(name));
        }
    }
    return texts;
}"""
OPEN = "details => details.forEach((one) => { one.open = true; })"
FILES = ("lesion.jpg", "broken.jpg", "notes.pdf", "empty.jpg", "unfamiliar.jpg")


def pseudo_page() -> str:
    classes = read_config(DEFAULT_CHECKPOINT).class_names
    options = {"is_audited": True, "reads_dicom": False, "by_code": {"el": pseudo_language()}}
    files = page_files(default_policy(), classes, "float32", **options)
    return files["index.el.html"].content.decode()


def without_names(texts: list[str]) -> list[str]:
    for name in FILES:
        texts = [text.replace(name, "") for text in texts]
    return texts


def test_every_text_of_the_page_is_in_the_catalogue(go) -> None:
    content = pseudo_page()
    with go() as visit:
        page = visit.page
        page.route(
            visit.url + "/", lambda route: route.fulfill(body=content, content_type="text/html")
        )
        page.reload()
        expect(page.locator("#passes option").first).to_be_attached()
        page.locator("details").evaluate_all(OPEN)
        assert outside(page.evaluate(SHOWN)) == []
        visit.add(
            lesion("lesion.jpg"), broken("broken.jpg"), upload("notes.pdf", b"%PDF-1.7"),
            upload("empty.jpg", b""), lesion("unfamiliar.jpg", "house"),
        )  # fmt: skip
        visit.wait(5)
        page.locator("#open-all").click()
        page.locator(".figures").evaluate_all(OPEN)
        page.locator(".decision-controls button").nth(1).click()
        assert outside(without_names(page.evaluate(SHOWN))) == []
        page.locator("#about").click()
        expect(page.locator("#model-facts details").first).to_be_visible()
        page.locator("#model-facts details").evaluate_all(OPEN)
        assert outside(without_names(page.evaluate(SHOWN))) == []
        page.keyboard.press("Escape")


def test_a_chosen_language_shows_results_and_survives_a_reload(go) -> None:
    german = languages()["de"]
    with go() as visit:
        page = visit.page
        page.get_by_role("link", name="Deutsch").click()
        visit.add(lesion("lesion.jpg"))
        visit.wait(1)
        (answer,) = visit.answers()
        assert answer["title"] == TITLES[answer["disposition"]]  # answers stay English
        for is_reloaded in (False, True):
            if is_reloaded:
                page.reload()
            card = visit.card("lesion.jpg")
            expect(page.locator("html")).to_have_attribute("lang", "de")
            expect(card.locator(".row-cells")).to_contain_text(german(answer["title"]))
            expect(page.locator("#summary")).to_contain_text("1 Bild: ")
            expect(page.get_by_role("link", name="Deutsch")).to_have_attribute(
                "aria-current", "true"
            )
