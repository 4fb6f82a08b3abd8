"""The report in a browser, as a file and offline: sorting, filters, accessibility and print."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eulerlora_clinic.policy import results as wording
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.report.html import write_html_report
from eulerlora_clinic.report.ranking import TriageRow
from tests.browser import TIMEOUT_MS, assert_accessible, chromium

pytestmark = pytest.mark.browser

DESKTOP, PHONE, PRINTED = 1280, 390, 703  # 186 mm of a page
VALUES = {"target": "Malignant", "entropy": "Entropy", "mutual": "Mutual information"}


@pytest.fixture(scope="module")
def report(rows: list[TriageRow], policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html_report(path, rows, policy, datetime.now(UTC))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def faults() -> list[str]:
    """Messages of the browser's console, and requests for anything but the file."""
    return []


@pytest.fixture
def opened(browser: Any, report: Path, faults: list[str]) -> Iterator[Any]:
    """(width, **options of the context) -> the report in an offline window."""
    contexts = []

    def page_of(width: int = DESKTOP, **options: object) -> Any:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(offline=True, viewport=viewport, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: note(request.url))
        page.goto(report.as_uri())
        return page

    def note(url: str) -> None:
        if url != report.as_uri() and not url.startswith("data:"):
            faults.append(url)

    yield page_of
    for context in contexts:
        context.close()
    assert faults == []


def keys(page: Any, key: str) -> list[float | None]:
    """The values of a sort key of the visible rows, from the top."""
    values: list[str | None] = page.eval_on_selector_all(
        "tbody.result:not([hidden])", f"rows => rows.map((row) => row.dataset.{key} ?? null)"
    )
    return [None if value is None else float(value) for value in values]


def sort_by(page: Any, title: str) -> str:
    """Clicks the button of a column; returns the direction that its heading shows."""
    page.get_by_role("button", name=title, exact=True).click()
    heading = page.get_by_role("columnheader", name=title, exact=True)
    assert page.locator("th[aria-sort]").count() == 1
    return str(heading.get_attribute("aria-sort"))


def test_it_opens_the_most_urgent_first(opened: Any) -> None:
    page = opened()
    urgency = keys(page, "urgency")
    assert urgency == sorted(urgency, reverse=True)
    heading = page.get_by_role("columnheader", name="Urgency")
    assert heading.get_attribute("aria-sort") == "descending"
    assert page.get_by_role("status").inner_text() == (
        "11 of 11 shown, sorted by “Urgency”, most urgent first."
    )


@pytest.mark.parametrize("key", VALUES)
def test_a_heading_sorts_by_its_values_and_missing_values_come_last(opened: Any, key: str) -> None:
    page = opened()
    for direction, reverse in (("descending", True), ("ascending", False)):
        assert sort_by(page, VALUES[key]) == direction
        values = keys(page, key)
        known = [value for value in values if value is not None]
        assert len(known) == 8  # neither the failed rows nor the unfamiliar one
        assert values == [*sorted(known, reverse=reverse), *[None] * 3]


def test_file_names_sort_alphabetically(opened: Any) -> None:
    page = opened()
    assert sort_by(page, "File name") == "ascending"
    names = page.locator("tbody.result bdi").all_inner_texts()
    assert names == sorted(names, key=str.casefold)
    assert sort_by(page, "File name") == "descending"
    assert page.locator("tbody.result bdi").all_inner_texts() == names[::-1]


def test_urgency_can_be_reversed_and_restored(opened: Any) -> None:
    page = opened()
    names = page.locator("tbody.result bdi").all_inner_texts()
    assert sort_by(page, "Urgency") == "ascending"
    urgency = keys(page, "urgency")
    assert urgency == sorted(urgency)
    assert sort_by(page, "Urgency") == "descending"
    assert page.locator("tbody.result bdi").all_inner_texts() == names


def test_the_keyboard_alone_sorts_and_filters(opened: Any) -> None:
    page = opened()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.closest('label, th, summary').innerText")
        )
        if reached[-1] == "Entropy":
            page.keyboard.press("Enter")
        if "Routine" in reached[-1]:
            page.keyboard.press("Space")
    assert page.get_by_role("status").inner_text() == (
        "10 of 11 shown, sorted by “Entropy”, highest first."
    )
    assert len(set(reached)) == 12  # six boxes, the guide and five headings


def test_unchecked_statuses_are_hidden(opened: Any) -> None:
    page = opened()
    for title in ("Urgent", "Not assessed"):
        page.get_by_role("checkbox", name=title).uncheck()
    shown = page.locator("tbody.result:visible")
    assert shown.count() == 7
    assert shown.locator(".verdict").all_inner_texts() == [
        "Unfamiliar", *["Refer"] * 4, "Retake", "Routine"
    ]  # fmt: skip
    page.get_by_role("checkbox", name="Urgent").check()
    assert page.locator("tbody.result:visible").count() == 9


def test_without_scripts_all_rows_are_visible_and_controls_are_not(opened: Any) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("tbody.result").count() == 11
    assert page.locator("button:enabled, input:visible").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_axe_finds_nothing_serious(opened: Any, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(width, color_scheme=scheme, bypass_csp=True)  # for the script of axe
    page.locator("summary").click()
    assert_accessible(axe.Axe(), page)


def test_it_fits_a_phone_and_stays_a_table_for_screen_readers(opened: Any) -> None:
    page = opened(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = Counter(node["role"]["value"] for node in tree if not node["ignored"])
    assert (roles["table"], roles["columnheader"], roles["rowheader"]) == (1, 5, 11)
    assert roles["cell"] == 4 * 11 + 9  # and one for the evidence, if there is any


def test_every_printed_page_has_the_warning_and_its_figures_on_one_line(
    opened: Any, tmp_path: Path
) -> None:
    pypdf = pytest.importorskip("pypdf")
    page = opened(PRINTED)
    page.emulate_media(media="print")
    lines = "all => all.map((one) => one.getClientRects().length)"
    assert {*page.eval_on_selector_all(".figure .value", lines)} == {1}
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    pages = pypdf.PdfReader(tmp_path / "report.pdf").pages
    assert len(pages) > 2
    for page in pages:
        width, height = (float(side) / 72 * 25.4 for side in page.mediabox[2:])
        assert (round(width), round(height)) == (210, 297)
        assert wording.WARNING in " ".join(page.extract_text().split())
