"""Accessibility, width and screenshots of the page in a browser."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import broken, lesion, upload
from tests.browser import assert_accessible

pytestmark = pytest.mark.browser

SCREENSHOTS = "EULERLORA_SCREENSHOTS"
PAGE = Path(__file__).parents[2] / "eulerlora_clinic" / "service" / "page"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The folder for screenshots: EULERLORA_SCREENSHOTS (for example docs/images), or temporary."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))


def screenshot(page: Any, file: Path, first: str = "body", last: str = ".card") -> None:
    """Writes a screenshot from the top of the first element to the bottom of the last one.

    Narrow pages show one screen. The number of colours is reduced to keep the file small.
    """
    page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
    page.locator(first).first.evaluate("element => element.scrollIntoView()")
    size = page.viewport_size
    if size["width"] > 600:
        end = page.locator(last).first.evaluate("element => element.getBoundingClientRect().bottom")
        page.set_viewport_size({"width": size["width"], "height": round(end) + 24})
    shot = page.screenshot()
    page.set_viewport_size(size)
    Image.open(BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        file, optimize=True
    )


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_page_is_accessible_and_does_not_overflow(go, width, scheme, images) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with go(width=width, scheme=scheme) as visit:
        page = visit.page

        def check() -> None:
            assert_accessible(axe, page)
            for narrow in (320, 344, 384) if width < 600 else ():
                page.set_viewport_size({"width": narrow, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") == narrow
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width

        covering = """[...document.querySelectorAll("body *")].filter((element) =>
            ["fixed", "sticky"].includes(getComputedStyle(element).position)).length"""
        assert page.evaluate(covering) == 0
        page.locator("#disclaimer summary").click()
        expect(page.locator("#limits")).to_be_visible()
        page.get_by_text("Advanced: passes, use via API").click()
        check()
        page.get_by_text("Advanced: passes, use via API").click()
        examples = (PAGE / f"example-{name}.jpg" for name in ("even", "irregular", "house"))
        visit.add(*(upload(file.name, file.read_bytes()) for file in examples))
        visit.add(lesion("lesion.jpg"), broken("broken.jpg"))
        visit.wait(5)
        if width > 600:
            screenshot(page, images / "page-list.png", last="#groups")
        check()
        page.get_by_role("button", name="Open all").click()
        for summary in page.locator("summary:visible").all():
            summary.click()
        check()
        page.get_by_role("button", name="About the model").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        check()
        page.keyboard.press("Escape")
        page.get_by_label("Model", exact=True).select_option("tiny")
        expect(page.get_by_text("Malignant", exact=True)).to_have_count(0)
        visit.wait(5)
        check()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "light")])
def test_one_image_is_shown_with_its_card(go, width, scheme, images) -> None:
    with go(width=width, scheme=scheme) as visit:
        visit.page.locator("[data-example='example-irregular.jpg']").click()
        visit.wait(1)
        first = ".verdict" if scheme == "dark" else "body"
        screenshot(visit.page, images / f"page-{width}-{scheme}.png", first=first, last="article")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
