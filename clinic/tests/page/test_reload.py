"""The work list after a reload of the page, and other ways in which images come to the page."""

from typing import Any

import pytest

from clinic.tests.page.browser import Visit, expect
from clinic.tests.page.lesions import broken, lesion, lesion_file

pytestmark = pytest.mark.browser

DROP = """async (files) => {
    const entryOf = ([name, type, content]) => ({
        name, isDirectory: false, isFile: true,
        file: (resolve) => resolve(new File([new Uint8Array(content)], name, { type })),
    });
    const below = { name: "scans", isDirectory: true, createReader() {
        const parts = [files.slice(1).map(entryOf), []];
        return { readEntries: (resolve) => resolve(parts.shift()) };
    } };
    const event = new Event("drop", { bubbles: true, cancelable: true });
    event.dataTransfer = { types: ["Files"], files: [], items: [entryOf(files[0]), below].map(
        (entry) => ({ webkitGetAsEntry: () => entry })) };
    document.dispatchEvent(event);
}"""


def reload(visit: Visit) -> list[str]:
    """Reloads the page; returns the kinds of questions that the browser asked, and accepts them."""
    asked: list[str] = []

    def accept(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    visit.page.on("dialog", accept)
    visit.page.reload()
    visit.page.remove_listener("dialog", accept)
    return asked


def test_results_fields_and_previews_survive_a_reload(go) -> None:
    with go() as visit:
        names = [f"{index}.jpg" for index in range(12)]
        kinds = ["irregular", "even", "even, turned"]
        visit.add(*(lesion(name, kinds[index % 3]) for index, name in enumerate(names)))
        visit.add(broken("broken.jpg"))
        visit.wait(13)
        visit.row("0.jpg").click()
        visit.card("0.jpg").get_by_label("Identifier").fill("P-17")
        visit.card("0.jpg").get_by_label("Note").fill("left arm")
        expect(visit.page.locator(".row-image img")).to_have_count(12)
        visit.page.wait_for_function(  # previews are made one after another
            """() => Object.values(sessionStorage).filter(
                (item) => JSON.parse(item).preview).length === 12"""
        )
        rows = visit.page.locator(".row").all_inner_texts()
        sent = sum("/triage?" in url for url in visit.requests)
        assert reload(visit) == []
        visit.wait(13)
        assert visit.page.locator(".row").all_inner_texts() == rows
        expect(visit.page.locator(".row-image img")).to_have_count(12)
        visit.row("0.jpg").click()
        expect(visit.card("0.jpg").get_by_label("Identifier")).to_have_value("P-17")
        expect(visit.card("0.jpg").get_by_label("Note")).to_have_value("left arm")
        visit.add(lesion("new.jpg"))
        visit.wait(14)
        visit.page.get_by_text("Advanced: passes, use via API").click()
        with visit.page.expect_request("**/triage?*"):
            visit.page.get_by_label("Allow settings without a threshold").check()
            visit.page.get_by_label("Passes of the model").select_option(index=1)
        visit.wait(14)
        asked = sum("/triage?" in url for url in visit.requests)
        assert asked == sent + 2  # the page has no file of the others
        visit.page.get_by_role("button", name="Remove all").click()
        assert visit.page.evaluate("Object.keys(sessionStorage)") == ["closed-privacy"]
        visit.page.get_by_role("button", name="Undo").click()
        visit.wait(14)
        reload(visit)
        visit.wait(14)


def test_what_is_stored_stays_closed_after_a_reload_until_it_is_opened(go) -> None:
    with go() as visit:
        summary = visit.page.get_by_text("What is stored, and what is sent")
        text = visit.page.get_by_text("This browser keeps the list")
        for is_open in (False, True):
            summary.click()
            expect(text).to_be_visible(visible=is_open)
            reload(visit)
            expect(text).to_be_visible(visible=is_open)


def test_an_image_without_a_result_has_to_be_added_again_after_a_reload(go) -> None:
    with go() as visit:
        visit.page.route("**/triage?*", lambda _: None)  # no answer comes
        visit.add(lesion("slow.jpg"))
        expect(visit.card("slow.jpg")).to_contain_text("Analysing")
        visit.page.unroute("**/triage?*")
        reload(visit)
        visit.wait(1)
        expect(visit.card("slow.jpg")).to_contain_text("Add the file again.")
        expect(visit.card("slow.jpg").get_by_role("button", name="Retry")).to_have_count(0)


def test_decisions_and_open_overrides_survive_a_reload_that_the_browser_asks_about(
    go, audited
) -> None:
    with go(audited.url) as visit:
        visit.add(lesion("one.jpg"), lesion("other.jpg", "even"))
        visit.wait(2)
        visit.action("Accept", "one.jpg").click()
        visit.action("Override", "other.jpg").click()
        visit.card("other.jpg").get_by_label("Decide").select_option("refer")
        visit.card("other.jpg").get_by_label("Reason").fill("seen bef")
        assert reload(visit) == ["beforeunload"]
        visit.wait(2)
        expect(visit.action("Undo", "one.jpg")).to_be_visible()
        expect(visit.card("other.jpg").get_by_label("Decide")).to_have_value("refer")
        reason = visit.card("other.jpg").get_by_label("Reason")
        expect(reason).to_have_value("seen bef")
        reason.press("End")
        reason.press_sequentially("ore")
        reason.press("Enter")
        expect(visit.card("other.jpg").get_by_role("status")).to_contain_text("Seen before.")
        assert reload(visit) == []  # all are decided
        visit.wait(2)


@pytest.mark.parametrize("is_mine", [True, False])
def test_the_list_waits_for_the_key_after_a_reload_and_can_be_removed_before(go, is_mine) -> None:
    refusal = {"code": "not_authenticated", "status": 401, "title": "An API key is required"}
    with go() as visit:
        visit.add(lesion("one.jpg"))
        visit.wait(1)
        visit.page.route("**/models", lambda route: route.fulfill(status=401, json=refusal))
        reload(visit)
        expect(visit.page.locator("#key-form")).to_contain_text("1 image is kept")
        visit.page.unroute("**/models")
        if is_mine:
            visit.page.locator("#key").fill("a-key")
        else:
            visit.page.get_by_role("button", name="Remove the list of another person").click()
            expect(visit.page.locator("#key-kept")).to_be_hidden()
            visit.page.keyboard.type("a-key")
        visit.page.locator("#key").press("Enter")
        expect(visit.page.locator("#key-form")).to_be_hidden()
        visit.wait(int(is_mine))


def test_a_dropped_folder_adds_its_images_and_counts_other_files(go) -> None:
    content = [*lesion_file()]
    files = [
        ["alone.txt", "text/plain", [104, 105]],
        ["10.jpg", "image/jpeg", content],
        ["9.jpg", "image/jpeg", content],
        [".hidden.jpg", "image/jpeg", content],
        ["Thumbs.db", "", [1]],
    ]
    with go() as visit:
        visit.page.evaluate(DROP, files)
        visit.wait(3)
        expect(visit.card("alone.txt")).to_contain_text("Expected a JPEG")
        names = visit.page.locator(".row-name").all_inner_texts()
        assert set(names) == {"alone.txt", "9.jpg", "10.jpg"}
        assert names.index("9.jpg") < names.index("10.jpg")
        expect(visit.page.locator("#left-out")).to_contain_text("2 files of other kinds")


def test_a_device_with_a_touch_screen_can_take_a_picture(browser, server) -> None:
    for has_touch in (False, True):
        context = browser.new_context(has_touch=has_touch, is_mobile=has_touch)
        try:
            page = context.new_page()
            page.goto(server.url + "/")
            button = page.get_by_role("button", name="Take a picture")
            expect(button).to_be_visible() if has_touch else expect(button).to_be_hidden()
            assert page.locator("#camera").get_attribute("capture") == "environment"
            assert (
                page.evaluate("getComputedStyle(document.documentElement).overscrollBehaviorY")
                == "none"
            )
        finally:
            context.close()
