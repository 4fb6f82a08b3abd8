"""POST /triage."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from clinic.tests.audit_entries import SECRET, verified
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy.policy import Policy, UnfamiliarRules, default_policy, policy_of
from eulerlora_clinic.policy.results import REASONS, TITLES, WARNING, decided
from eulerlora_contract.answers import PolicyDescription, Reason, TriageResult
from eulerlora_contract.checkpoints import ClassName, ScoreThreshold
from eulerlora_contract.quality import measure_quality
from service.http.responses import rounded
from tests.conftest import STOCH, THRESHOLDS, TINY_BACKBONE
from tests.service.conftest import encoded

NAMES = ("bkl", "mel", "nv", "bcc", "akiec")
HEADERS = {"Content-Type": "image/png"}


def policy(urgent: float = 0.5, **quality: float) -> Policy:
    """The packaged policy with both thresholds at `urgent`."""
    packaged = default_policy()
    lenient = {"too_small_px": 0, "blurred": 0.0, **quality}
    return packaged.model_copy(
        update={
            "quality": packaged.quality.model_copy(update=lenient),
            "target": packaged.target.model_copy(update={"routine": urgent, "urgent": urgent}),
        }
    )


@pytest.fixture(scope="module")
def checkpoint(make_network, make_config) -> Checkpoint:
    """A checkpoint of five classes with feature statistics, but without a threshold for them."""
    network = make_network(classes=len(NAMES))
    names = tuple(ClassName(name=name, description=name.upper()) for name in NAMES)
    features = 3 * TINY_BACKBONE.width
    distance = FeatureDistance(FeatureStatistics(torch.zeros(1, features), torch.eye(features)))
    return Checkpoint(network, make_config(network, classes=names), "sha256:five", distance)


@pytest.fixture(scope="module")
def five_classes(checkpoint) -> EulerLoRA:
    return EulerLoRA(checkpoint, torch.device("cpu"))


def with_distance_threshold(
    checkpoint: Checkpoint, threshold: float, msp: float = THRESHOLDS[0].msp
) -> EulerLoRA:
    """A model that flags a larger feature distance, and a lower MSP, in mode det."""
    limit = ScoreThreshold(threshold=threshold, kept=0.95, upper_quartile=threshold)
    det = THRESHOLDS[0].model_copy(update={"feature_distance": limit, "msp": msp})
    config = checkpoint.config.model_copy(update={"thresholds": (det,)})
    return EulerLoRA(replace(checkpoint, config=config), torch.device("cpu"))


@pytest.fixture(scope="module")
def urgent(five_classes) -> Iterator[TestClient]:
    """A client of a service that rates every malignant probability as urgent."""
    with TestClient(app_of(five_classes, policy=policy(urgent=1e-9))) as client:
        yield client


def test_the_result_has_a_disposition_and_its_evidence(urgent, png, photo) -> None:
    response = urgent.post("/triage?mode=stoch&samples=2&seed=5", content=png, headers=HEADERS)
    assert response.status_code == 200
    body = response.json()
    chosen = policy(urgent=1e-9)
    assert (body["disposition"], body["title"]) == ("urgent", TITLES["urgent"])
    reasons = {reason["code"]: reason["words"] for reason in body["reasons"]}
    assert "target_classes" in reasons
    assert reasons == {
        code: REASONS[Reason(code)].format(target=chosen.target.name) for code in reasons
    }
    assert "urgent" in body["pathway"]
    assert body["warning"] == WARNING
    reference = {"version": chosen.version, "hash": chosen.hash}
    assert "not set for this model" in body["policy"].pop("notice")
    assert body["policy"] == {
        **reference,
        "established": False,
        "measured": [],
    }
    assert body["class_names"] == {name: name.upper() for name in NAMES}
    assert body["quality"] == rounded(measure_quality(photo).model_dump())
    probabilities = body["prediction"]["probabilities"]
    assert body["target"]["classes"] == ["mel", "bcc", "akiec"]
    assert body["target"]["probability"] == pytest.approx(
        probabilities["mel"] + probabilities["bcc"] + probabilities["akiec"], abs=1e-5
    )


@pytest.mark.parametrize("detail", ["", "&detail=trajectories"])
def test_the_prediction_equals_that_of_predict(urgent, png, detail: str) -> None:
    query = f"mode=stoch&samples=2&seed=5{detail}"
    headers = {**HEADERS, "X-Request-ID": "same"}
    triaged = urgent.post(f"/triage?{query}", content=png, headers=headers).json()
    predicted = urgent.post(f"/predict?{query}", content=png, headers=headers).json()
    assert triaged["prediction"] == predicted
    assert len(predicted.get("trajectory_probabilities", ())) == (4 if detail else 0)


def test_a_client_decides_on_the_json_of_an_answer_as_the_service_does(
    five_classes, png, photo
) -> None:
    """Without trajectories it does not know whether they agree."""
    rules = policy(urgent=0.999)
    with TestClient(app_of(five_classes, policy=rules)) as client:
        for content, query in product((png, encoded(photo, "PNG")), ("mode=det", "samples=4")):
            asked = f"/triage?{query}&detail=trajectories"
            result = TriageResult.model_validate(client.post(asked, content=content).json())
            again = decided(result, rules)
            assert (again.disposition, again.reasons) == (result.disposition, result.reasons)
            few = result.prediction.model_copy(update={"trajectory_probabilities": None})
            unknown = decided(result.model_copy(update={"prediction": few}), rules)
            assert Reason.TRAJECTORIES_UNKNOWN in {reason.code for reason in unknown.reasons}


def post_batch(client: TestClient, *contents: bytes, query: str = "") -> Any:
    files = [("files", (f"{index}.png", content)) for index, content in enumerate(contents)]
    return client.post(f"/triage/batch?{query}", files=files)


def test_a_batch_has_the_answer_of_every_image_as_alone(urgent, png, photo) -> None:
    turned, query = encoded(photo.rotate(90), "PNG"), "mode=stoch&samples=2&seed=5"
    response = post_batch(urgent, png, turned, query=query)
    assert response.headers["Cache-Control"] == "no-store"
    assert "model;dur=" in response.headers["Server-Timing"]
    for content, result in zip((png, turned), response.json()["results"], strict=True):
        alone = urgent.post(f"/triage?{query}", content=content, headers=HEADERS).json()
        assert list(result) == [*alone, "type", "index", "item_id"]
        for name in ("disposition", "reasons", "policy", "quality"):
            assert result[name] == alone[name]
        assert result["prediction"]["item_id"] == result["item_id"]


def test_a_lesion_has_the_disposition_of_its_most_urgent_image(five_classes, png) -> None:
    dark = encoded(Image.new("RGB", (300, 200), (3, 3, 3)), "PNG")
    with TestClient(app_of(five_classes, policy=policy(urgent=1.0))) as client:
        images = (dark, png, b"no image", dark)
        body = post_batch(client, *images, query="mode=det&lesions=7,7,3,3").json()
        plain = post_batch(client, *images, query="mode=det").json()
    found = {tuple(one["images"]): one for one in body["lesions"]}
    assert list(found) == [(0, 1), (2, 3)]
    for images, lesion in found.items():
        deciding = body["results"][lesion["decided_by"]]
        assert lesion["decided_by"] in images
        assert lesion["disposition"] == deciding["disposition"] != "routine"
        assert (lesion["title"], lesion["pathway"]) == (deciding["title"], deciding["pathway"])
    assert [one["lesion"] for one in body["lesions"]] == [7, 3]
    assert "lesions" not in plain


@pytest.mark.parametrize("lesions", ["1", "1,2,3", "1,", "a,b", "-1,1", "1;2", ""])
def test_lesions_that_do_not_fit_the_images_are_refused(urgent, png, refused, lesions) -> None:
    response = post_batch(urgent, png, png, query=f"lesions={lesions}")
    assert "lesions" in refused(response, 422, "invalid_parameter")
    alone = urgent.post("/triage?lesions=1", content=png, headers=HEADERS)
    assert "lesions" in refused(alone, 422, "invalid_parameter")


def test_the_audit_log_and_the_metrics_have_every_disposition_of_a_batch(
    five_classes, png, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, SECRET)
    with TestClient(app_of(five_classes, policy=policy(urgent=1e-9), audit=log)) as client:
        results = post_batch(client, png, png, b"no image").json()["results"]
        client.post("/triage", content=png, headers=HEADERS)
        metrics = client.get("/metrics").text
    recorded = [record for record in verified(path) if record["kind"] == "answer"]
    assert [record["item_id"] for record in recorded[-1:]] == [None]
    assert {record["item_id"]: record["triage"]["disposition"] for record in recorded[:-1]} == {
        result["item_id"]: result["disposition"] for result in results[:2]
    }
    counted = f'eulerlora_dispositions_total{{disposition="{results[0]["disposition"]}",model="'
    (line,) = (line for line in metrics.splitlines() if line.startswith(counted))
    assert line.endswith(" 3.0")


def test_the_audit_log_names_the_images_of_a_lesion_of_one_request(
    five_classes, png, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, SECRET)
    with TestClient(app_of(five_classes, policy=policy(urgent=1.0), audit=log)) as client:
        for query in ("lesions=1,2,1", "lesions=1,2,1", ""):
            files = [("files", (name, png)) for name in "abc"]
            headers = {"X-Request-ID": "again"}
            client.post(f"/triage/batch?{query}", files=files, headers=headers)
    answers = [record for record in verified(path) if record["kind"] == "answer"]
    requests = [sorted(answers[n : n + 3], key=itemgetter("item_id")) for n in (0, 3, 6)]
    first, second, plain = ([one["lesion"] for one in request] for request in requests)
    assert first[0] == first[2] and second[0] == second[2]
    assert len({*first, *second}) == 4
    assert plain == [None] * 3


@pytest.mark.parametrize(
    ("urgent", "disposition"),
    [
        (1e-9, "urgent"),
        (1.0, "unfamiliar"),
    ],
)
def test_an_unfamiliar_image_is_urgent_from_the_urgent_threshold_on(
    checkpoint, png, urgent: float, disposition: str
) -> None:
    dark = encoded(Image.new("RGB", (300, 200), (3, 3, 3)), "PNG")
    with TestClient(
        app_of(with_distance_threshold(checkpoint, 0.0), policy=policy(urgent))
    ) as client:
        body, poor = (
            client.post("/triage?mode=det", content=content, headers=HEADERS).json()
            for content in (png, dark)
        )
    for answer in (body, poor):
        assert answer["prediction"]["unfamiliar"] is True
        assert (answer["disposition"], answer["title"]) == (disposition, TITLES[disposition])
        assert "unfamiliar" in {each["code"] for each in answer["reasons"]}
        assert "does not know such images" in answer["pathway"]
    assert "retake" not in body["pathway"]
    assert "retake" in poor["pathway"]
    assert "too_dark" in {each["code"] for each in poor["reasons"]}


@pytest.mark.parametrize(
    ("far", "ood", "msp", "disposition"),
    [
        (1e-6, False, 0.0, "unfamiliar"),
        (1e6, False, 1.0, "urgent"),
        (1e6, True, 1.0, "unfamiliar"),  # below its threshold of the MSP
        (1e6, True, 0.0, "urgent"),
    ],
)
def test_a_far_image_is_never_urgent(
    checkpoint, png, far: float, ood: bool, msp: float, disposition: str
) -> None:
    model = with_distance_threshold(checkpoint, 0.0, msp)
    rules = policy(1e-9).model_copy(update={"unfamiliar": UnfamiliarRules(far=far, ood=ood)})
    query = "/triage?mode=det&detail=trajectories"
    with TestClient(app_of(model, policy=rules)) as client:
        answer = client.post(query, content=png, headers=HEADERS).json()
        described = client.get("/triage/policy").json()["policy"]
    assert answer["prediction"]["ood"] is (msp == 1)
    assert answer["disposition"] == disposition
    codes = {each["code"] for each in answer["reasons"]}
    assert codes >= {"unfamiliar", "target_classes"}
    assert ("far" in codes) is (disposition == "unfamiliar")
    assert described["unfamiliar"] == {"far": far, "ood": ood}
    result = TriageResult.model_validate(answer)
    assert decided(result, rules).reasons == result.reasons


def fitted(model: EulerLoRA, mode: str, samples: int) -> Policy:
    """A policy whose threshold was set for a model, mode and number of samples."""
    chosen = policy(urgent=1e-9)
    options = replace(STOCH, mode=mode, samples=samples)
    settings = {"revision": model.revision, "options": options}
    return chosen.model_copy(update={"evidence": (chosen.evidence[0].model_copy(update=settings),)})


@pytest.mark.parametrize(("mode", "samples"), [("stoch", 2), ("stoch", 8), ("det", 1)])
def test_mode_and_samples_default_to_those_of_the_policys_threshold(
    five_classes, png, mode: str, samples: int
) -> None:
    chosen = fitted(five_classes, mode, samples)
    with TestClient(app_of(five_classes, policy=chosen)) as client:
        alone = client.post("/triage", content=png, headers=HEADERS).json()
        (in_batch,) = post_batch(client, png).json()["results"]
        described = client.get("/triage/policy").json()
        document = client.get("/openapi.json").json()
    for body in (alone, in_batch):
        assert (body["prediction"]["mode"], body["prediction"]["samples"]) == (mode, samples)
        assert body["policy"]["notice"] is None
        assert [
            (one["data"], one["sensitivity"], one["specificity"])
            for one in body["policy"]["measured"]
        ] == [
            (one.data, one.critical.sensitivity, one.others.specificity)
            for one in chosen.evidence[0].measured
        ]
    assert (described["mode"], described["samples"] or 1) == (mode, samples)
    for path in ("/triage", "/triage/batch"):
        documented, *_ = document["paths"][path]["post"]["parameters"]
        assert (documented["name"], documented["schema"]["default"]) == ("mode", mode)


def test_explicit_values_win_and_get_the_notice(five_classes, png) -> None:
    with TestClient(app_of(five_classes, policy=fitted(five_classes, "stoch", 2))) as client:
        for query, samples in (("samples=4", 4), ("mode=det", 1), ("mode=stoch&samples=8", 8)):
            body = client.post(f"/triage?{query}", content=png, headers=HEADERS).json()
            assert body["prediction"]["samples"] == samples
            assert "not set for this model" in body["policy"]["notice"]
            assert body["policy"]["measured"] == []
        plain = client.post("/triage?mode=stoch", content=png, headers=HEADERS).json()
        assert (plain["prediction"]["samples"], plain["policy"]["notice"]) == (2, None)


def test_an_answer_is_established_in_the_precisions_with_evidence_only(checkpoint, png) -> None:
    rounded = EulerLoRA.of(checkpoint, "cpu", "bfloat16")
    exact = fitted(rounded, "stoch", 2)
    options = exact.evidence[0].options.in_precision("bfloat16")
    measured = exact.evidence[0].model_copy(update={"options": options})
    both = exact.model_copy(update={"evidence": (*exact.evidence, measured)})
    notices = []
    for chosen in (exact, both):
        with TestClient(app_of(rounded, policy=chosen)) as client:
            body = client.post("/triage", content=png, headers=HEADERS).json()
        assert body["prediction"]["precision"] == "bfloat16"
        assert body["policy"]["established"] == (body["policy"]["notice"] is None)
        notices.append(body["policy"]["notice"])
    assert "nothing is established for bfloat16" in notices[0]
    assert notices[1] is None


def test_the_policy_is_described_exactly(five_classes) -> None:
    chosen = policy(urgent=0.123456789)
    with TestClient(app_of(five_classes, policy=chosen)) as client:
        response = client.get("/triage/policy")
    described = PolicyDescription.model_validate_json(response.content)
    assert policy_of(described.policy, "the service").hash == described.hash == chosen.hash
    assert response.headers["Cache-Control"] == "no-store"
    assert [one.disposition for one in described.dispositions] == [
        "urgent", "unfamiliar", "refer", "retake", "routine"
    ]  # fmt: skip
    assert all(one.title == one.disposition.capitalize() for one in described.dispositions)


def test_a_model_without_the_classes_of_the_policy_is_refused(client, png, refused) -> None:
    response = client.post("/triage", content=png, headers=HEADERS)
    assert "bcc, akiec" in refused(response, 422, "policy_not_applicable")
