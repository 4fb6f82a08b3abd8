"""POST /predict, end to end: the same answers as the library's, and problems for all else."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import entropy as scipy_entropy
from starlette.testclient import TestClient

from eulerlora.checkpoint import Checkpoint
from eulerlora.model import EulerLoRA
from service.inference.queue import RequestQueue
from service.routes.predict import server_timing
from service.telemetry.events import Timing

KEYS = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "warnings",
}  # fmt: skip
TIMEOUT_S = 120
STOCH = {"mode": "stoch", "samples": 4}


def answer_of(response: Any) -> dict[str, Any]:
    """A good response's body without what belongs to the request alone."""
    assert response.status_code == 200, response.text
    return {key: value for key, value in response.json().items() if key != "request_id"}


def check_against_library(body: dict[str, Any], prediction: Any) -> None:
    """The service's answer is the library's to 1e-6."""
    assert list(body["probabilities"].values()) == pytest.approx(
        prediction.probabilities[0].tolist(), abs=1e-6
    )
    for name in ("entropy", "expected_entropy", "mutual_information", "msp"):
        assert body[name] == pytest.approx(getattr(prediction, name).item(), abs=1e-6)
    assert body["label"] == prediction.labels[0]
    assert body["trajectories"] == prediction.trajectories.shape[1]
    assert body["ood"] == (None if prediction.ood is None else prediction.ood.item())


def test_an_answer_has_the_keys_of_the_contract(post_image, png, model) -> None:
    response = post_image(png)
    body = response.json()
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert set(body) == KEYS
    assert (body["model"], body["revision"]) == ("tiny", model.revision)
    assert (body["mode"], body["samples"], body["trajectories"]) == ("det", 1, 2)
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert body["warnings"] == []
    assert 0 <= body["seed"] < 2**32


@pytest.mark.parametrize(
    ("parameters", "samples", "trajectories"),
    [({}, 1, 2), ({"mode": "det"}, 1, 2), ({"mode": "stoch"}, 4, 8), (STOCH, 4, 8),
     ({"mode": "stoch", "samples": 1}, 1, 2), ({"mode": "stoch", "samples": 64}, 64, 128)],
)  # fmt: skip
def test_there_is_a_trajectory_for_each_adapter_and_sample(
    post_image, png, parameters, samples, trajectories
) -> None:
    body = post_image(png, detail="trajectories", **parameters).json()
    assert (body["samples"], body["trajectories"]) == (samples, trajectories)
    assert len(body["trajectory_probabilities"]) == trajectories


@pytest.mark.parametrize("parameters", [{}, STOCH])
def test_details_and_summary_tell_the_same(post_image, png, parameters) -> None:
    body = post_image(png, detail="trajectories", **parameters).json()
    assert set(body) == KEYS | {"trajectory_probabilities"}
    trajectories = np.array(body["trajectory_probabilities"])
    probabilities = np.array(list(body["probabilities"].values()))
    assert list(body["probabilities"]) == ["bkl", "mel", "nv"]
    assert trajectories.sum(axis=1) == pytest.approx(1)
    assert probabilities.sum() == pytest.approx(1)
    assert trajectories.mean(axis=0) == pytest.approx(probabilities)
    assert body["entropy"] == pytest.approx(scipy_entropy(probabilities))
    assert body["expected_entropy"] == pytest.approx(scipy_entropy(trajectories, axis=1).mean())
    assert body["mutual_information"] == pytest.approx(body["entropy"] - body["expected_entropy"])
    assert body["msp"] == pytest.approx(probabilities.max())
    assert body["label"] == list(body["probabilities"])[probabilities.argmax()]
    plain = answer_of(post_image(png, **parameters))
    assert plain == {key: body[key] for key in KEYS - {"request_id"}}


def test_the_same_question_gets_the_same_answer_and_another_seed_another(
    post_image, png, photo, encode
):
    first = answer_of(post_image(png, **STOCH))
    assert answer_of(post_image(png, **STOCH)) == first
    assert answer_of(post_image(png, **STOCH, seed=first["seed"])) == first
    other = answer_of(post_image(png, **STOCH, seed=(first["seed"] + 1) % 2**32))
    assert other["probabilities"] != first["probabilities"]
    assert answer_of(post_image(encode(photo.rotate(180), "PNG"), **STOCH))["seed"] != first["seed"]


def test_the_seed_changes_nothing_in_det(post_image, png) -> None:
    one, two = answer_of(post_image(png, seed=1)), answer_of(post_image(png, seed=2))
    assert (one.pop("seed"), two.pop("seed")) == (1, 2)
    assert one == two


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_multipart_and_raw_bodies_get_the_same_answer(
    client, post_image, photo, encode, file_format
) -> None:
    data, media_type = encode(photo, file_format), f"image/{file_format.lower()}"
    raw = answer_of(post_image(data, media_type, **STOCH))
    form = client.post("/predict", params=STOCH, files={"file": ("a", data, media_type)})
    assert answer_of(form) == raw
    assert raw["warnings"] == []


def test_lossless_formats_of_one_picture_get_the_same_answer(
    post_image, png, photo, encode
) -> None:
    webp = post_image(encode(photo, "WEBP", lossless=True), "image/webp", **STOCH)
    assert answer_of(webp) == answer_of(post_image(png, **STOCH))


@pytest.mark.parametrize("seed", [None, 0, 2**32 - 1])
@pytest.mark.parametrize("parameters", [{"mode": "det"}, STOCH, {"mode": "stoch", "samples": 3}])
def test_the_answer_is_that_of_the_library_for_the_same_file(
    checkpoint_folder: Path, tmp_path: Path, post_image, photo, encode, parameters, seed
) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(encode(photo, "JPEG"))
    prediction = EulerLoRA.load(checkpoint_folder).predict([file], **parameters, seed=seed)
    seeded = parameters if seed is None else parameters | {"seed": seed}
    check_against_library(post_image(file.read_bytes(), "image/jpeg", **seeded).json(), prediction)


def test_a_real_server_gives_the_librarys_answer_over_a_socket(live, model, photo, png) -> None:
    url = f"http://127.0.0.1:{live}/predict"
    with httpx.Client(timeout=TIMEOUT_S) as session:
        form = session.post(url, params=STOCH, files={"file": ("a.png", png, "image/png")})
        raw = session.post(url, content=png, headers={"Content-Type": "image/png"})
    check_against_library(form.json(), model.predict([photo], "stoch", 4))
    check_against_library(raw.json(), model.predict([photo]))


def test_a_connection_is_of_further_use_after_a_refusal(live, png) -> None:
    url, body = f"http://127.0.0.1:{live}/predict", png * 10
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=TIMEOUT_S) as session:
        for parameters, status in (({"seed": "x"}, 422), ({"model": "x"}, 404), ({}, 200)):
            response = session.post(
                url, params=parameters, content=body, headers={"Content-Type": "image/png"}
            )
            assert response.status_code == status


@pytest.mark.parametrize("threshold", [0.0, 1.0, None])
def test_ood_is_true_below_the_threshold_and_null_without_one(
    make_network, make_config, make_app, png, threshold
) -> None:
    network = make_network()
    given = {"mode": "det", "samples": 1, "kept": 0.9, "images": 9, "data": "test"}
    thresholds = () if threshold is None else ({**given, "msp": threshold},)
    config = make_config(network, thresholds=thresholds)
    model = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model)) as client:
        det = client.post("/predict", **sent).json()
        stoch = client.post("/predict?mode=stoch", **sent).json()
    assert (det["ood"], det["ood_threshold"]) == ({0.0: False, 1.0: True, None: None}[threshold],
                                                  threshold)  # fmt: skip
    assert (stoch["ood"], stoch["ood_threshold"]) == (None, None)


def test_server_timing_tells_decoding_queue_and_model(post_image, png) -> None:
    parts = post_image(png).headers["Server-Timing"].split(", ")
    durations = {name: float(value) for name, value in (part.split(";dur=") for part in parts)}
    assert list(durations) == ["decode", "queue", "model"]
    assert all(value >= 0 for value in durations.values())
    assert durations["model"] > 0


def test_server_timing_is_in_milliseconds() -> None:
    timings = [Timing(0.0125, 0, 2), Timing(0.001, 0.25, 1)]
    assert server_timing(timings[:1]) == "decode;dur=12.50, queue;dur=0.00, model;dur=2000.00"
    assert server_timing(timings) == "decode;dur=12.50, queue;dur=250.00, model;dur=2000.00"


def test_an_answer_is_the_same_alone_and_in_a_mixed_batch(
    checkpoint_folder: Path, make_app, encode, monkeypatch
) -> None:
    ask_room, submitted = RequestQueue.enqueue, threading.Semaphore(0)

    def counted(room: RequestQueue, *arguments: Any) -> None:
        ask_room(room, *arguments)
        submitted.release()

    monkeypatch.setattr(RequestQueue, "enqueue", counted)
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    random = np.random.default_rng(4)
    pictures = [
        encode(Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)), "PNG")
        for _ in range(17)
    ]
    stoch = [{"mode": "stoch", "samples": 1 + n % 8} for n in range(9)]
    questions = list(zip(pictures, [*stoch, *[{}] * 8], strict=True))  # 75 + 16 rows of 128
    batches: list[int] = []
    entered, gate = threading.Event(), threading.Event()
    gate.set()

    def hold(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        batches.append(len(inputs[0]))
        entered.set()
        assert gate.wait(TIMEOUT_S)

    with TestClient(make_app(model)) as client, ThreadPoolExecutor(18) as pool:

        def post_image(question: tuple[bytes, dict[str, object]]) -> dict[str, Any]:
            content, parameters = question
            return answer_of(
                client.post(
                    "/predict",
                    params=parameters | {"detail": "trajectories"},
                    content=content,
                    headers={"Content-Type": "image/png"},
                )
            )

        alone = [post_image(question) for question in questions]
        for _ in questions:
            assert submitted.acquire(timeout=TIMEOUT_S)
        model.network.register_forward_pre_hook(hold)
        gate.clear()
        blocking = pool.submit(post_image, questions[0])
        assert entered.wait(TIMEOUT_S)
        assert submitted.acquire(timeout=TIMEOUT_S)
        together = [pool.submit(post_image, question) for question in questions]
        for _ in questions:
            assert submitted.acquire(timeout=TIMEOUT_S)
        gate.set()
        answers = [future.result(TIMEOUT_S) for future in together]
        assert blocking.result(TIMEOUT_S) == alone[0]
    assert batches == [1, 17]
    for one, other in zip(alone, answers, strict=True):
        assert (one["seed"], one["label"]) == (other["seed"], other["label"])
        np.testing.assert_allclose(
            one["trajectory_probabilities"], other["trajectory_probabilities"], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(
    ("parameter", "query", "value"),
    [
        ("mode", "mode=zzmodezz", "zzmodezz"),
        ("mode", "mode=", None),
        ("samples", "mode=stoch&samples=0", None),
        ("samples", "mode=stoch&samples=-1", "-1"),
        ("samples", "mode=stoch&samples=65", "65"),
        ("samples", "mode=stoch&samples=1e9", "1e9"),
        ("samples", "mode=stoch&samples=NaN", "NaN"),
        ("samples", "mode=stoch&samples=4.5", "4.5"),
        ("samples", "mode=stoch&samples=", None),
        ("samples", "samples=3", "3"),
        ("samples", "mode=det&samples=1", None),
        ("samples", "mode=stoch&samples=11&samples=12", "12"),
        ("mode", "mode=det&mode=det", None),
        ("sample", "sample=31337", "31337"),
        ("sample", "sample=31337&sample=31337", "31337"),
        ("seed", "seed=-1", "-1"),
        ("seed", "seed=4294967297", "4294967297"),
        ("seed", "seed=4294967296", None),
        ("seed", "seed=abc", "abc"),
        ("seed", "seed=1&seed=1", None),
        ("detail", "detail=zzdetailzz", "zzdetailzz"),
    ],
)
def test_a_bad_parameter_is_a_422_that_names_it_without_its_value(
    client, refused, png, parameter, query, value
) -> None:
    response = client.post(f"/predict?{query}", content=png, headers={"Content-Type": "image/png"})
    detail = refused(response, 422, "invalid_parameter")
    assert detail.split(":")[0] == parameter
    if value is not None:
        assert value not in detail


def test_a_parameter_with_an_unprintable_name_is_refused_unnamed(client, refused, png) -> None:
    for query in ("%3Cscript%3E=1", "%FF%0A=1", "x" * 65 + "=1", "%00=1"):
        response = client.post(
            f"/predict?{query}", content=png, headers={"Content-Type": "image/png"}
        )
        detail = refused(response, 422, "invalid_parameter")
        assert detail == "a parameter with an unprintable name: no such parameter"


@pytest.mark.parametrize("name", ["xyzzy", ""])
def test_an_unknown_model_is_a_404_that_does_not_repeat_its_name(
    post_image, refused, png, name
) -> None:
    response = post_image(png, model=name)
    assert "served are: tiny" in refused(response, 404, "unknown_model")
    assert "xyzzy" not in response.text


def test_a_bad_parameter_is_told_before_the_body_is_read(post_image, refused) -> None:
    refused(post_image(b"no image", "text/plain", mode="det", samples=4), 422, "invalid_parameter")
    refused(post_image(b"no image", "text/plain", model="xyzzy"), 404, "unknown_model")


FILE = ("a.png", b"content", "image/png")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({}, 422, "invalid_upload"),
        ({"files": {"file": ("a.png", b"", "image/png")}}, 422, "invalid_upload"),
        ({"files": {"zzname": FILE}}, 422, "invalid_upload"),
        ({"files": [("file", FILE), ("file", FILE)]}, 422, "invalid_upload"),
        ({"files": {"file": (None, b"content")}}, 422, "invalid_upload"),
        ({"json": {"image": "zzname"}}, 415, "unsupported_media"),
        ({"data": {"image": "zzname"}}, 415, "unsupported_media"),
        ({"files": {"file": ("a.png", b"zzname")}}, 415, "unsupported_media"),
        (
            {"content": b"zzname", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
            400,
            "malformed_body",
        ),
        (
            {"content": b"zzname", "headers": {"Content-Type": "multipart/form-data"}},
            400,
            "malformed_body",
        ),
    ],
    ids=["no body", "empty file", "another name", "two files", "no filename", "json", "urlencoded",
         "no image", "broken multipart", "no boundary"],
)  # fmt: skip
def test_a_bad_upload_is_refused(client, refused, sent, status, code) -> None:
    response = client.post("/predict", **sent)
    refused(response, status, code)
    assert "zzname" not in response.text


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF"])
def test_another_image_format_is_a_415_whatever_it_is_called(
    client, post_image, refused, photo, encode, file_format
) -> None:
    data = encode(photo, file_format)
    form = {"file": ("a.png", data, "image/png")}
    refused(client.post("/predict", files=form), 415, "unsupported_media")
    refused(post_image(data, "image/png"), 415, "unsupported_media")
    refused(post_image(data, f"image/{file_format.lower()}"), 415, "unsupported_media")


@pytest.mark.parametrize(
    "content", [b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7"]
)
def test_text_svg_and_pdf_are_a_415(post_image, refused, content) -> None:
    refused(post_image(content), 415, "unsupported_media")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("media_type", ["image/png", "multipart/form-data; boundary=b"])
def test_a_body_over_the_limit_is_a_413(model, make_app, png, chunked, media_type) -> None:
    sent = {"Content-Type": media_type}
    with TestClient(make_app(model, bodies={"max_bytes": len(png)})) as client:
        content = iter([png, b"!"]) if chunked else png + b"!"
        response = client.post("/predict", content=content, headers=sent)
        fitting = client.post("/predict", content=png, headers={"Content-Type": "image/png"})
    assert response.status_code == 413
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "body_too_large"
    assert fitting.status_code == 200


def test_a_declared_type_that_disagrees_gives_a_warning_and_the_contents_answer(
    client, post_image, png
) -> None:
    right = answer_of(post_image(png))
    for response in (
        post_image(png, "image/jpeg"),
        client.post("/predict", files={"file": ("a.png", png, "image/webp")}),
    ):
        wrong = answer_of(response)
        assert len(wrong.pop("warnings")) == 1
        assert wrong == {key: value for key, value in right.items() if key != "warnings"}


def test_an_extension_that_disagrees_gives_a_warning(client, png) -> None:
    response = client.post("/predict", files={"file": ("photo.jpg", png, "image/png")})
    assert len(answer_of(response)["warnings"]) == 1


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_image_is_a_422(post_image, refused, photo, encode, file_format) -> None:
    data = encode(photo, file_format)
    response = post_image(data[: len(data) // 2], f"image/{file_format.lower()}")
    refused(response, 422, "unusable_image")


def test_random_bytes_after_a_jpegs_magic_are_a_422(post_image, refused) -> None:
    noise = np.random.default_rng(5).bytes(2000)
    refused(post_image(b"\xff\xd8\xff" + noise, "image/jpeg"), 422, "unusable_image")


def test_a_bomb_is_a_422(post_image, refused, bombs) -> None:
    for name, data in bombs.items():
        assert "the image is 1" in refused(post_image(data), 422, "unusable_image"), name


@pytest.mark.parametrize("size", [(1, 1), (1, 60_000)])
def test_a_size_outside_the_limits_is_a_422(post_image, refused, encode, size) -> None:
    detail = refused(post_image(encode(Image.new("L", size), "PNG")), 422, "unusable_image")
    assert f"{size[0]} x {size[1]}" in detail


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_an_animation_is_a_422(post_image, refused, photo, encode, file_format) -> None:
    frames = [ImageOps.mirror(photo)]
    data = encode(photo, file_format, save_all=True, append_images=frames, duration=40)
    refused(post_image(data, f"image/{file_format.lower()}"), 422, "unusable_image")


def test_a_fully_transparent_image_is_a_422(post_image, refused, photo, encode) -> None:
    clear = photo.convert("RGBA")
    clear.putalpha(0)
    assert "transparent" in refused(post_image(encode(clear, "PNG")), 422, "unusable_image")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
def test_trailing_bytes_and_garbage_exif_change_no_answer(post_image, png, photo, encode) -> None:
    right = answer_of(post_image(png, **STOCH))
    noise = np.random.default_rng(6).bytes(200)
    assert answer_of(post_image(png + noise, **STOCH)) == right
    garbage = b"Exif\0\0II*\0\x08\0\0\0" + noise
    assert answer_of(post_image(encode(photo, "PNG", exif=garbage), **STOCH)) == right


def test_an_image_turned_by_exif_gets_the_upright_ones_answer(
    post_image, png, photo, encode
) -> None:
    right = answer_of(post_image(png, **STOCH))
    turned = photo.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[274] = 6  # to be shown turned clockwise
    assert answer_of(post_image(encode(turned, "PNG", exif=exif), **STOCH)) == right
    assert (
        answer_of(post_image(encode(turned, "PNG"), **STOCH))["probabilities"]
        != right["probabilities"]
    )


def test_other_colour_modes_are_answered_with_a_warning(post_image, photo, encode) -> None:
    wide = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)
    gray = answer_of(post_image(encode(photo.convert("L"), "PNG")))
    assert gray["warnings"] == []
    for image, file_format in (
        (wide, "PNG"), (photo.convert("CMYK"), "JPEG"), (photo.quantize(16), "PNG"),
        (photo.convert("LA"), "PNG"),
    ):  # fmt: skip
        body = answer_of(post_image(encode(image, file_format), f"image/{file_format.lower()}"))
        assert len(body["warnings"]) == 1, image.mode
    sixteen = answer_of(post_image(encode(wide, "PNG")))
    assert sixteen["probabilities"] == gray["probabilities"]


def test_a_model_without_a_finite_answer_is_a_500_of_its_own(
    checkpoint_folder: Path, make_app, png
) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model)) as client:
        good = answer_of(client.post("/predict", **sent))
        kept = model.network.heads.bias[1, 0].item()
        with torch.no_grad():
            model.network.heads.bias[1, 0] = torch.nan
        response = client.post("/predict", **sent)
        with torch.no_grad():
            model.network.heads.bias[1, 0] = kept
        assert answer_of(client.post("/predict", **sent)) == good
    assert response.status_code == 500
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "model_failure"
    assert response.json()["request_id"] == response.headers["X-Request-ID"]


def test_the_openapi_document_tells_of_uploads_and_problems(client) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    assert set(operation["requestBody"]["content"]) == {
        "multipart/form-data", "image/jpeg", "image/png", "image/webp",
    }  # fmt: skip
    assert {each["name"] for each in operation["parameters"]} == {
        "mode", "samples", "seed", "model", "detail",
    }  # fmt: skip
    assert {"200", "400", "404", "413", "415", "422", "500"} <= set(operation["responses"])


def test_a_client_that_hangs_up_while_queued_is_never_run(live, model, png, monkeypatch) -> None:
    asked, left = threading.Semaphore(0), threading.Semaphore(0)
    ask_room, leave_room = RequestQueue.enqueue, RequestQueue.release

    def post_image(room: RequestQueue, *arguments: Any) -> None:
        ask_room(room, *arguments)
        asked.release()

    def leave(room: RequestQueue, *arguments: Any) -> None:
        leave_room(room, *arguments)
        left.release()

    monkeypatch.setattr(RequestQueue, "enqueue", post_image)
    monkeypatch.setattr(RequestQueue, "release", leave)
    passes: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def hold(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        passes.append(len(inputs[0]))
        entered.set()
        assert gate.wait(TIMEOUT_S)

    url = f"http://127.0.0.1:{live}/predict"
    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    head = f"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: {len(png)}\r\n"
    handle = model.network.register_forward_pre_hook(hold)
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(httpx.post, url, **sent, timeout=TIMEOUT_S)
            assert entered.wait(TIMEOUT_S)
            with socket.create_connection(("127.0.0.1", live), timeout=TIMEOUT_S) as gone:
                gone.sendall(head.encode() + b"Content-Type: image/png\r\n\r\n" + png)
                for _ in range(2):
                    assert asked.acquire(timeout=TIMEOUT_S)
            assert left.acquire(timeout=TIMEOUT_S)  # while the first still runs
            gate.set()
            assert first.result(TIMEOUT_S).status_code == 200
        assert httpx.post(url, **sent, timeout=TIMEOUT_S).status_code == 200
    finally:
        handle.remove()
    assert passes == [1, 1]


def test_under_overload_everybody_is_answered_or_refused_at_once(model, make_app, png) -> None:
    entered, gate = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        entered.set()
        assert gate.wait(TIMEOUT_S)

    sent = {"content": png, "headers": {"Content-Type": "image/png"}}
    with TestClient(make_app(model, max_waiting_rows=8)) as client, ThreadPoolExecutor(12) as pool:
        handle = model.network.register_forward_pre_hook(hold)
        try:
            asking = [pool.submit(client.post, "/predict", **sent)]
            assert entered.wait(TIMEOUT_S)
            asking += [pool.submit(client.post, "/predict", **sent) for _ in range(11)]
            refusals = [each.result() for each in islice(as_completed(asking, TIMEOUT_S), 7)]
            assert not gate.is_set()
        finally:
            gate.set()
            handle.remove()
        statuses = [each.result(TIMEOUT_S).status_code for each in asking]
        assert client.post("/predict", **sent).status_code == 200
    assert sorted(statuses) == [200] * 5 + [503] * 7  # one ran, and four of two rows waited
    for response in refusals:
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "overloaded"
        assert int(response.headers["Retry-After"]) >= 1
