"""The page and the documentation: their files, headers and security policy."""

import json
import re
from collections.abc import Collection, Mapping
from importlib.resources import files

import pytest
from markupsafe import escape

from clinic.tests.triage_rows import IN_BOTH_PRECISIONS as POLICY
from eulerlora_clinic.language import languages
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.policy.results import NOT_MEASURED, not_established, performance
from eulerlora_clinic.service.page import page_files
from eulerlora_contract.sampling import PRECISIONS, Precision
from service.routes.files import PageFile, documentation_files

LESIONS = POLICY.target.classes


def files_of(
    policy: Policy = POLICY,
    classes: Collection[str] = LESIONS,
    is_audited: bool = False,
    reads_dicom: bool = False,
    precision: Precision = "float32",
) -> Mapping[str, PageFile]:
    return page_files(
        policy,
        classes,
        precision,
        is_audited=is_audited,
        reads_dicom=reads_dicom,
        by_code={"en": languages()["en"]},
    )


def index(*arguments: object, **named: object) -> str:
    return files_of(*arguments, **named)["index.en.html"].content.decode()  # type: ignore[arg-type]


NAMES = sorted(set(files_of()) - {"index.en.html"})
DOCUMENTATION_NAMES = sorted(set(documentation_files()) - {"index.html"})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_page_shows_the_measured_performance_of_its_policy_in_the_served_precision(
    precision: Precision,
) -> None:
    evidence = POLICY.evidence_in(precision)
    assert evidence is not None
    measured = performance(POLICY, evidence)
    assert measured is not None and precision in measured.origin
    shown = index(precision=precision)
    assert escape(measured.origin) in shown
    for table in (measured.summary, measured.details):
        for cell in (*table.header, *(cell for row in table.rows for cell in row)):
            assert escape(cell) in shown
    parts = evidence.measured
    pictures = {
        "HAM10000": "dermatoscopic images of the clinics that the model learned from",
        "PH2": "dermatoscopic images of another clinic",
        "PAD-UFES-20": "photographs taken with phones",
    }
    for part in parts:
        assert escape(part.data.replace(", lesion-best-epoch split", "")) in shown
        assert pictures[part.data.replace(",", " ").split()[0]] in shown
    assert shown.count("Of no use here") == sum(part.others.specificity < 0.1 for part in parts)
    unmeasured = POLICY.model_copy(update={"evidence": ()})
    assert escape(NOT_MEASURED) in index(unmeasured)


def test_a_policy_that_is_not_established_is_named_at_the_top() -> None:
    content = POLICY.model_dump()
    content["evidence"][1]["fit"]["urgent"]["established"] = False
    unproven = Policy.model_validate(content)
    notice = not_established(unproven, unproven.evidence[1])
    assert notice is not None
    assert escape(notice) in index(unproven, precision="bfloat16").partition('id="intake"')[0]
    assert "policy-notice" not in index(unproven)
    exact = POLICY.model_copy(update={"evidence": POLICY.evidence[:1]})
    assert "set and measured in float32" in index(exact, precision="bfloat16")


def test_the_page_is_about_triage_only_if_the_policy_applies_to_the_default_model() -> None:
    triage, other = index(), index(classes=("cat", "dog"))
    assert 'data-subject="triage"' in triage and "<title>Triage" in triage
    assert 'data-subject="images"' in other and "<title>Image classification" in other


def test_a_policy_of_another_target_brings_its_words_and_no_skin() -> None:
    rules = POLICY.model_dump(exclude={"evidence"})
    rules["target"] = {"name": "broken", "classes": ("crack",), "routine": 0.1, "urgent": 0.2}
    shown = index(Policy.model_validate(rules), ("crack", "whole"))
    assert 'data-subject="triage"' in shown and "broken" in shown
    assert not re.search("dermatoscop|melanoma|malignant|data-example", shown)
    assert "data-example" in index() and "dermatoscope" in index()


def test_the_page_says_what_the_server_records_and_keeps_files_for_the_audit_as_they_are() -> None:
    plain, audited = index(), index(is_audited=True)
    assert "stores neither images nor results" in plain and "audit log" not in plain
    assert "Its audit log records every result" in audited
    assert 'id="strip" checked' in plain and 'id="strip">' in audited


def test_the_page_says_beside_the_removal_of_metadata_what_happens_to_dicom_files() -> None:
    plain, reads = index(), index(reads_dicom=True)
    assert "reads no DICOM files" in plain and "application/dicom" not in plain
    assert "WebP or DICOM" in reads and "application/dicom" in reads
    assert "DICOM files are sent only while this is off" in reads
    for page, answered in ((plain, []), (reads, ["a DICOM file"])):
        (kinds,) = re.findall(r'id="file-kinds">(.*?)</script>', page)
        listed = json.loads(kinds)["kinds"]
        assert [kind["name"] for kind in listed if kind["is_read"]] == answered


def test_the_page_loads_one_script_with_all_modules_and_one_style() -> None:
    page = index()
    assert re.findall(r'(?:src|href)="page/([^"]+\.(?:js|css))"', page) == ["page.css", "page.js"]
    script, names = files_of()["page.js"].content.decode(), files_of()
    modules = [name for name in names if name.endswith(".js") and name != "page.js"]
    for name in modules:
        heading = names[name].content.decode().partition("\n")[0]
        assert script.count(heading) == 1, name
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.index("class WorkList") < script.index("new WorkList(")


@pytest.mark.parametrize(
    ("query", "header", "tag"),
    [
        ("", "de-CH,en;q=0.5", "de"), ("", "it", "en-GB"), ("?language=fr", "de", "fr"),
        ("?language=xx", "de", "de"),
    ],
)  # fmt: skip
def test_the_page_has_the_chosen_or_the_accepted_language(client, query, header, tag) -> None:
    response = client.get(f"/{query}", headers={"Accept-Language": header})
    assert f'<html lang="{tag}">' in response.text
    assert response.headers["Content-Language"] == tag
    assert response.headers["Vary"] == "Accept-Encoding, Accept-Language"


def test_files_are_sent_compressed_to_those_who_accept_it(client) -> None:
    plain = client.get("/page/page.js", headers={"Accept-Encoding": "identity"})
    compressed = client.get("/page/page.js", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert compressed.content == plain.content  # decoded by the client
    assert int(compressed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 2
    assert compressed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"


def test_the_security_policy_allows_only_this_server_and_no_frames(client) -> None:
    headers = client.get("/").headers
    assert headers["Content-Security-Policy"].split("; ") == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", *(f"/page/{name}" for name in NAMES),
     *(f"/docs/{name}" for name in DOCUMENTATION_NAMES)],
)  # fmt: skip
def test_every_file_has_the_headers_of_the_page_and_can_be_cached(client, path) -> None:
    page, first = client.get("/"), client.get(path)
    again = client.get(path, headers={"If-None-Match": f'"other", {first.headers["ETag"]}'})
    changed = client.get(path, headers={"If-None-Match": '"other"'})
    assert (first.status_code, again.status_code, changed.status_code) == (200, 304, 200)
    assert first.content and not again.content
    for name in ("Content-Security-Policy", "X-Content-Type-Options", "Cache-Control", "ETag"):
        assert first.headers[name] == again.headers[name] == changed.headers[name]
    for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"):
        assert first.headers[name] == page.headers[name]
    kinds = {"js": "text/javascript", "css": "text/css", "jpg": "image/jpeg", "svg": "image/svg"}
    kind = kinds.get(path.rpartition(".")[2], "text/html")
    assert first.headers["Content-Type"].startswith(kind)


@pytest.mark.parametrize(
    "path",
    ["/page/index.html", "/page/index.en.html", "/page/missing.js", "/page/..%2Fapp.py",
     "/page/%2e%2e/app.py", "/docs/index.html", "/docs/oauth2-redirect",
     "/docs/..%2Fmain.js", "/redoc"],
)  # fmt: skip
def test_other_files_are_not_served(client, refused, path) -> None:
    refused(client.get(path), 404, "not_found")


def test_no_file_has_another_host_or_inline_styles_or_scripts() -> None:
    folders = [
        files("service").joinpath("documentation"),
        files("eulerlora_clinic.service").joinpath("page"),
    ]
    texts = {
        file.name: file.read_text("utf-8")
        for folder in folders
        for file in folder.iterdir()
        if "." in file.name and not file.name.endswith(".jpg")
    }
    assert {"main.js", "start.js"} <= set(texts)
    for name, text in texts.items():
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", ""), name
        assert not re.search(r"\b(style|on[a-z]+)=", text), name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text)
