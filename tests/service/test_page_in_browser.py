"""The page in a browser, before a running server."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from service.client.wording import PATHWAYS, REASONS, TITLES, WARNING
from service.commands import EMBEDDED
from service.key_file import write_clients
from tests.server_process import ServerProcess, serving
from tests.service.browser import PATIENCE_MS, Visit, chromium, visiting
from tests.service.key_clients import client
from tests.service.lesions import Lesion, file_of, lesion_picture

pytestmark = pytest.mark.browser

Go = Callable[..., AbstractContextManager[Visit]]

FLAT = Lesion(5, radius=0.33, ragged=0.2, colour=(0.82, 0.5, 0.47), mottled=0.2)
DARK = Lesion(3, radius=0.34, ragged=0.3, colour=(0.16, 0.11, 0.12), mottled=0.5)
SMALL = Lesion(2, radius=0.16, ragged=0.05)
SCREENSHOTS = "EULERLORA_SCREENSHOTS"


def upload(name: str, content: bytes, media_type: str = "image/jpeg") -> dict[str, object]:
    return {"name": name, "mimeType": media_type, "buffer": content}


def lesion(name: str, drawn: Lesion) -> dict[str, object]:
    return upload(name, file_of(lesion_picture(drawn)))


def noise() -> dict[str, object]:
    """Stripes of pure colours, unlike anything that the model was trained on."""
    stripes = Image.effect_mandelbrot((400, 300), (-2, -1.5, 1, 1.5), 100).convert("RGB")
    buffer = BytesIO()
    stripes.save(buffer, "PNG")
    return upload("mandelbrot.png", buffer.getvalue(), "image/png")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expecting  # noqa: PLC0415 - skipped without it

    expecting.set_options(timeout=PATIENCE_MS)
    return expecting(locator)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser: Any, checkpoint_folder: Path) -> Iterator[ServerProcess]:
    """One that serves the embedded model, and a tiny one that the policy does not fit."""
    with serving(EMBEDDED, checkpoint_folder) as server:
        server.wait_for("/readyz", 200)
        yield server


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Where screenshots go: to the documents where that is asked for."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))


@pytest.fixture
def go(browser: Any, server: ServerProcess) -> Go:
    """(url, width, scheme) -> a visit to the page, of the module's server if none is told."""

    def visit(
        url: str = server.url, width: int = 1280, scheme: str = "light"
    ) -> AbstractContextManager[Visit]:
        return visiting(browser, url, width, scheme)

    return visit


def test_one_picture_gets_a_disposition_first_and_then_what_it_rests_on(go) -> None:
    with go() as visit:
        visit.add(lesion("flat.jpg", FLAT))
        card = visit.card("flat.jpg")
        expect(card.get_by_text(TITLES["urgent"], exact=True)).to_be_visible()
        expect(card.get_by_text(PATHWAYS["urgent"])).to_be_visible()
        expect(card.get_by_text(REASONS["malignant_group"])).to_be_visible()
        expect(card.locator("circle.point")).to_have_count(7 * 8)
        words = card.inner_text()
        parts = [TITLES["urgent"], "Why", "What it resembles", "How unsure", "How familiar"]
        assert sorted(parts, key=words.index) == parts
        assert "Expected entropy" in words and "Mutual information" in words
        log = visit.page.locator("#announcements")
        expect(log).to_contain_text(f"flat.jpg: {TITLES['urgent']}.")
        assert visit.page.evaluate("livingBlobUrls()") == 0


def test_the_warning_stays_in_sight_wherever_one_is_in_a_card(go) -> None:
    with go(width=390) as visit:
        visit.add(lesion("flat.jpg", FLAT))
        card = visit.card("flat.jpg")
        expect(card.locator("circle.point")).to_have_count(7 * 8)
        warning = card.get_by_text(WARNING)
        for place in (".verdict-title", ".class-chart", ".scales", ".origin"):
            card.locator(place).evaluate("each => each.scrollIntoView({block: 'center'})")
            expect(warning).to_be_in_viewport(ratio=1)


def test_three_pictures_are_summed_up_and_can_be_removed(go) -> None:
    with go() as visit:
        visit.add(lesion("flat.jpg", FLAT), lesion("dark.jpg", DARK), lesion("small.jpg", SMALL))
        summary = visit.page.locator("#summary")
        expect(summary).to_have_text(r"3 pictures: 2 to prioritise, 1 routine")
        visit.page.get_by_role("button", name="Remove dark.jpg").click()
        expect(summary).to_have_text("2 pictures: 1 to prioritise, 1 routine")
        expect(visit.page.get_by_role("heading", name="small.jpg")).to_be_focused()


def test_a_broken_file_says_why_and_hurts_no_other(go, images) -> None:
    good = lesion("good.jpg", FLAT)
    broken = upload("broken.jpg", bytes(good["buffer"])[:3000])  # type: ignore[call-overload]
    text = upload("notes.jpg", b"not a picture at all")
    with go() as visit:
        visit.add(broken, text, good)
        expect(visit.card("broken.jpg")).to_contain_text("The JPEG data is broken or truncated.")
        expect(visit.card("notes.jpg")).to_contain_text(
            "wanted a JPEG, PNG or WebP", ignore_case=True
        )
        expect(visit.card("notes.jpg")).to_contain_text("No preview")
        expect(visit.card("good.jpg")).to_contain_text(TITLES["urgent"])
        assert WARNING not in visit.card("broken.jpg").inner_text()
        screenshot(visit.page, images / "page-problems.png", last="li:nth-child(3) .verdict")
        retry = visit.page.get_by_role("button", name="Retry all 2 without an answer")
        retry.click()
        expect(retry).to_be_visible()  # asked again, they are as broken as before


@pytest.mark.slow
def test_a_picture_unlike_the_training_data_is_never_routine(go) -> None:
    with go() as visit:
        visit.add(noise())
        card = visit.card("mandelbrot.png")
        expect(card.get_by_text("How familiar the picture is")).to_be_visible()
        expect(card.get_by_text(TITLES["routine"], exact=True)).to_have_count(0)


@pytest.mark.slow
def test_a_too_large_file_is_told_without_sending_it(go) -> None:
    with go() as visit:
        visit.add(upload("large.jpg", bytes(20 * 2**20)))
        expect(visit.card("large.jpg")).to_contain_text(
            "at most 20,971,520 bytes", ignore_case=True
        )
        assert not any("triage" in url for url in visit.requests)


def test_the_switch_asks_again_about_the_same_picture(go) -> None:
    with go() as visit:
        visit.add(lesion("flat.jpg", FLAT))
        card = visit.card("flat.jpg")
        expect(card.locator("circle.point")).to_have_count(7 * 8)
        visit.page.get_by_label("Samples per adapter").select_option("2")
        expect(card.locator("circle.point")).to_have_count(7 * 4)
        visit.page.get_by_role("radio", name="Fixed").check()
        expect(card.locator("circle.point")).to_have_count(7 * 2)
        expect(visit.page.get_by_label("Samples per adapter")).to_be_hidden()
        asked = [url.partition("?")[2] for url in visit.requests if "/triage" in url]
        assert asked == [
            "mode=stoch&model=ham10000&samples=4",
            "mode=stoch&model=ham10000&samples=2",
            "mode=det&model=ham10000",
        ]


@pytest.mark.slow
def test_a_model_that_the_policy_does_not_fit_gives_a_prediction_alone(go) -> None:
    with go() as visit:
        visit.page.get_by_label("Model", exact=True).select_option("tiny")
        visit.add(lesion("flat.jpg", FLAT))
        card = visit.card("flat.jpg")
        expect(card).to_contain_text("No disposition")
        expect(card).to_contain_text("needs the classes bcc, akiec")
        expect(card.locator("circle.point")).to_have_count(3 * 8)
        expect(card.get_by_text(WARNING)).to_be_visible()


@pytest.mark.slow
def test_only_a_few_pictures_are_asked_about_at_a_time(go) -> None:
    held: list[Any] = []
    released: list[bool] = []

    def hold(route: Any) -> None:
        if released:
            route.continue_()
        else:
            held.append(route)

    with go() as visit:
        visit.page.route("**/triage?*", hold)
        visit.add(*(lesion(f"{number}.jpg", FLAT) for number in range(5)))
        expect(visit.page.get_by_text("The model looks at it")).to_have_count(2)
        expect(visit.page.get_by_text("Waits for its turn")).to_have_count(3)
        assert len(held) == 2
        released.append(True)
        for route in held:
            route.continue_()
        expect(visit.page.locator("#summary")).to_have_text("5 pictures: 5 to prioritise")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (429, "quota_exceeded", "This key has asked as often as it may for now."),
        (503, "not_ready", "The server is starting or stopping"),
    ],
)
def test_a_refusal_for_now_tells_when_to_retry(go, status, code, words) -> None:
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
        visit.add(lesion("flat.jpg", FLAT))
        card = visit.card("flat.jpg")
        expect(card).to_contain_text(words)
        expect(card).to_contain_text("Retry in 7 seconds.")
        visit.page.unroute("**/triage?*")
        card.get_by_role("button", name="Retry flat.jpg").click()
        expect(card).to_contain_text(TITLES["urgent"])


@pytest.mark.slow
def test_a_busy_server_is_asked_again_when_it_says_so(go) -> None:
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
        visit.add(lesion("flat.jpg", FLAT))
        expect(visit.card("flat.jpg")).to_contain_text(TITLES["urgent"])
        assert not refusals


@pytest.mark.slow
def test_a_server_that_is_gone_is_told_on_the_card(go, checkpoint_folder) -> None:
    with serving(checkpoint_folder) as doomed:
        doomed.wait_for("/readyz", 200)
        with go(doomed.url) as visit:
            visit.add(lesion("before.jpg", FLAT))
            expect(visit.card("before.jpg")).to_contain_text("What it resembles")
            doomed.signal(signal.SIGKILL)
            doomed.process.join()
            visit.add(lesion("after.jpg", FLAT))
            expect(visit.card("after.jpg")).to_contain_text("The server does not answer.")
            expect(visit.card("before.jpg")).to_contain_text("What it resembles")
            expect(visit.page.get_by_role("button", name="Retry after.jpg")).to_be_visible()


@pytest.mark.slow
def test_a_key_is_asked_for_refused_and_then_taken(go, checkpoint_folder, tmp_path) -> None:
    keys = tmp_path / "keys"
    key = "a-key-of-the-clinics"
    write_clients(keys, [client("clinic", key)])
    with serving(checkpoint_folder, "--keys", keys) as guarded:
        guarded.wait_for("/readyz", 200)
        with go(guarded.url) as visit:
            field = visit.page.get_by_label("This server asks for a key")
            expect(field).to_be_focused()
            visit.add(lesion("flat.jpg", FLAT))
            expect(visit.card("flat.jpg")).to_contain_text("A key is wanted.")
            field.fill("wrong")
            field.press("Enter")
            expect(visit.page.get_by_text("The server does not take this key.")).to_be_visible()
            field.fill(key)
            field.press("Enter")
            expect(visit.card("flat.jpg")).to_contain_text("What it resembles")
            expect(field).to_be_hidden()
            assert key not in visit.page.content()


def test_everything_can_be_done_with_the_keyboard_alone(go) -> None:
    with go() as visit:
        keyboard, page = visit.page.keyboard, visit.page
        expect(page.locator("#samples option")).to_have_count(7)
        keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the results")).to_be_focused()
        keyboard.press("Tab")
        expect(page.get_by_role("button", name="About the model")).to_be_focused()
        keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Intended use")
        expect(dialog).to_contain_text("melanocytic nevus")
        keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        keyboard.press("Tab")
        with page.expect_file_chooser() as choosing:
            keyboard.press("Space")
        choosing.value.set_files([lesion("flat.jpg", FLAT)])
        card = visit.card("flat.jpg")
        expect(card.locator("circle.point")).to_have_count(7 * 8)
        keyboard.press("Tab")
        expect(page.get_by_role("radio", name="Sampled")).to_be_focused()
        keyboard.press("ArrowRight")
        expect(card.locator("circle.point")).to_have_count(7 * 2)
        for _ in range(2):  # past the choice of a model
            keyboard.press("Tab")
        expect(page.get_by_role("button", name="Remove flat.jpg")).to_be_focused()
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(card.get_by_role("table")).to_be_visible()
        keyboard.press("Shift+Tab")
        keyboard.press("Space")
        expect(page.locator(".card")).to_have_count(0)
        expect(page.get_by_role("button", name="Choose pictures")).to_be_focused()


def test_a_picture_can_be_pasted(go) -> None:
    with go() as visit:
        visit.page.evaluate(
            """async () => {
                const canvas = new OffscreenCanvas(300, 200);
                const paint = canvas.getContext("2d");
                paint.fillStyle = "peachpuff";
                paint.fillRect(0, 0, 300, 200);
                paint.fillStyle = "sienna";
                paint.fillRect(120, 60, 60, 60);
                const blob = await canvas.convertToBlob({type: "image/png"});
                await navigator.clipboard.write([new ClipboardItem({"image/png": blob})]);
            }"""
        )
        visit.page.keyboard.press("Control+V")
        expect(visit.card("image.png")).to_contain_text("300 \N{MULTIPLICATION SIGN} 200 pixels")


@pytest.mark.slow
def test_pictures_can_be_dropped(go) -> None:
    content = list(file_of(lesion_picture(FLAT)))
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
        expect(visit.card("dropped.jpg")).to_contain_text(TITLES["urgent"])


@pytest.mark.data
def test_real_lesions_all_get_a_disposition(go, real_data) -> None:
    archive = real_data / "ham10000-200x150.tar.xz"
    import tarfile  # noqa: PLC0415

    with tarfile.open(archive) as files:
        images = (each for each in files if each.name.endswith(".jpg"))
        chosen = [
            upload(Path(each.name).name, files.extractfile(each).read())  # type: ignore[union-attr]
            for each, _ in zip(images, range(4), strict=False)
        ]
    with go() as visit:
        visit.add(*chosen)
        for each in chosen:
            expect(visit.card(str(each["name"])).locator(".verdict-title")).to_have_count(1)
            expect(visit.card(str(each["name"])).locator("circle.point")).to_have_count(7 * 8)


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(390, "light", marks=pytest.mark.slow),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_serious_and_nothing_overflows(go, width, scheme, images) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    broken = upload("broken.jpg", file_of(lesion_picture(FLAT))[:3000])
    with go(width=width, scheme=scheme) as visit:
        serious(axe, visit.page)
        visit.add(lesion("lesion-1.jpg", FLAT), lesion("lesion-2.jpg", SMALL), broken)
        expect(visit.page.locator("#summary")).to_contain_text("1 routine, 1 without an answer")
        within = ".card .class-chart" if scheme == "dark" else "body"
        screenshot(visit.page, images / f"page-{width}-{scheme}.png", first=within)
        for summary in visit.page.locator("summary").all():
            summary.click()
        serious(axe, visit.page)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        visit.page.get_by_role("button", name="About the model").click()
        expect(visit.page.get_by_role("dialog")).to_be_visible()
        serious(axe, visit.page)


def serious(axe: Any, page: Any) -> None:
    """Fails where axe-core finds something serious or critical."""
    found = axe.run(page).response["violations"]
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in bad] == []


def screenshot(page: Any, file: Path, first: str = "body", last: str = ".card") -> None:
    """Writes a picture of the page from the top of one element to the bottom of another, the
    first of their kind; a telephone shows one screen. In few colours, so that the file is small.
    """
    page.locator(first).first.evaluate("each => each.scrollIntoView()")
    size = page.viewport_size
    if size["width"] > 600:
        end = page.locator(last).first.evaluate("each => each.getBoundingClientRect().bottom")
        page.set_viewport_size({"width": size["width"], "height": round(end) + 24})
    shot = page.screenshot()
    page.set_viewport_size(size)
    Image.open(BytesIO(shot)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
