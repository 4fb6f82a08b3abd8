"""The triage page in a browser: problems, keys, and dropped files."""

import json
import signal
from typing import Any

import pytest

from clinic.tests.page.browser import expect
from clinic.tests.page.lesions import fractal, lesion, lesion_file, upload
from eulerlora_clinic.policy.results import REASONS, TITLES
from tests.server_process import serving
from tests.service.key_files import client, write_keys

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CLASSES = "Class probabilities"
REFERS = """
format_version = 2
version = 7
quality = { too_small_px = 0, too_dark = 0.01, too_bright = 0.99, too_dark_share = 1.0, \
too_bright_share = 1.0, blurred = 0.0 }
target = { name = "malignant", classes = ["mel"], routine = 1.0, urgent = 1.0 }
uncertainty = { entropy_nats = 9.0 }
"""


def test_an_image_unlike_the_training_data_is_referred(go, flags_all, tmp_path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(REFERS)
    with serving(flags_all, "--policy", policy) as server:
        server.wait_for("/readyz", 200)
        with go(server.url) as visit:
            visit.add(fractal())
            card = visit.card("fractal.png")
            expect(card).to_contain_text(TITLES["refer"])
            expect(card).to_contain_text(REASONS["out_of_distribution"])
            expect(card).to_contain_text("Perhaps unlike the images it learned from")
            card.get_by_text("Figures and how to read them").click()
            expect(card).to_contain_text("Below its threshold")
            expect(card).to_contain_text("version 7, sha256:")


def test_a_too_large_file_is_reported_without_sending_it(go) -> None:
    with go() as visit:
        content = lesion_file()
        visit.add(upload("large.jpg", content[:-2] + bytes(20 * 2**20) + content[-2:]))
        expect(visit.card("large.jpg")).to_contain_text(
            "at most 20,971,520 bytes", ignore_case=True
        )
        assert not any("/triage?" in url for url in visit.requests)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (429, "quota_exceeded", "The rate limit of this key is reached."),
        (503, "not_ready", "The server is starting or stopping"),
    ],
)
def test_a_temporary_refusal_shows_when_to_retry(go, status, code, advice) -> None:
    body = json.dumps({"code": code, "title": "Not now", "detail": "for a reason"})
    with go() as visit:
        visit.page.route(
            "**/triage?*",
            lambda route: route.fulfill(
                status=status,
                body=body,
                headers={"Retry-After": "7", "Content-Type": "application/problem+json"},
            ),
        )
        visit.add(lesion("lesion.jpg"))
        card = visit.card("lesion.jpg")
        expect(card).to_contain_text(advice)
        expect(card).to_contain_text("Retry in 7 seconds.")
        visit.page.unroute("**/triage?*")
        card.get_by_role("button", name="Retry lesion.jpg").click()
        expect(visit.row("lesion.jpg")).to_be_focused()
        expect(card).to_contain_text(CLASSES)


def test_an_overloaded_server_is_retried_after_the_given_time(go) -> None:
    refusals = [1]
    body = json.dumps({"code": "overloaded", "title": "Busy", "detail": "too much"})

    def refuse_once(route: Any) -> None:
        if refusals:
            refusals.pop()
            route.fulfill(status=503, body=body, headers={"Retry-After": "1"})
        else:
            route.continue_()

    with go() as visit:
        visit.page.route("**/triage?*", refuse_once)
        visit.add(lesion("lesion.jpg"))
        expect(visit.card("lesion.jpg")).to_contain_text(CLASSES)
        assert not refusals


def test_an_unreachable_server_is_reported_on_the_card(go, checkpoint_folder) -> None:
    with serving(checkpoint_folder) as doomed:
        doomed.wait_for("/readyz", 200)
        with go(doomed.url) as visit:
            visit.add(lesion("before.jpg"))
            expect(visit.card("before.jpg")).to_contain_text(CLASSES)
            doomed.signal(signal.SIGKILL)
            doomed.process.join()
            visit.add(lesion("after.jpg"))
            expect(visit.row("after.jpg")).to_contain_text("The server does not respond.")
            visit.row("before.jpg").click()
            expect(visit.card("before.jpg").get_by_text(CLASSES)).to_be_visible()
            visit.row("after.jpg").click()
            expect(visit.card("after.jpg")).to_contain_text("the image is still on this page")
            expect(visit.page.get_by_role("button", name="Retry after.jpg")).to_be_visible()


def test_a_wrong_key_is_refused_and_a_valid_one_accepted(go, checkpoint_folder, tmp_path) -> None:
    keys = tmp_path / "keys"
    key = "a-key-of-the-clinics"
    write_keys(keys, client("clinic", key))
    with serving(checkpoint_folder, "--keys", keys) as guarded:
        guarded.wait_for("/readyz", 200)
        with go(guarded.url) as visit:
            field = visit.page.get_by_label("This server requires an API key")
            expect(field).to_be_focused()
            visit.add(lesion("lesion.jpg"))
            expect(visit.card("lesion.jpg")).to_contain_text("An API key is required.")
            field.fill("wrong")
            field.press("Enter")
            expect(visit.page.get_by_text("The server does not accept this key.")).to_be_visible()
            field.fill(key)
            field.press("Enter")
            expect(visit.card("lesion.jpg")).to_contain_text(CLASSES)
            expect(field).to_be_hidden()
            assert key not in visit.page.content()


def test_images_can_be_dropped(go) -> None:
    content = list(lesion_file())
    with go() as visit:
        dropped = visit.page.evaluate_handle(
            """content => {
                const dropped = new DataTransfer();
                const options = {type: "image/jpeg"};
                dropped.items.add(new File([new Uint8Array(content)], "dropped.jpg", options));
                return dropped;
            }""",
            content,
        )
        visit.page.dispatch_event("#intake", "dragenter", {"dataTransfer": dropped})
        expect(visit.page.locator("#intake.dragged-over")).to_have_count(1)
        visit.page.dispatch_event("#intake", "drop", {"dataTransfer": dropped})
        expect(visit.page.locator("#intake.dragged-over")).to_have_count(0)
        expect(visit.card("dropped.jpg")).to_contain_text(CLASSES)
