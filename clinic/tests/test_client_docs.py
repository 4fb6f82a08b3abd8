"""docs/how-to/clients.md, clinic/docs/reports.md and the client's README: their examples run."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from clinic.tests.audit_entries import SECRET
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora_client import Disposition
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_clinic.policy.results import TITLES
from tests.markdown import code_blocks
from tests.program import run
from tests.service.real_server import SOCKET_TIMEOUT_S, run_server

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "docs" / "how-to" / "clients.md", ROOT / "clinic" / "docs" / "reports.md"]
README = (ROOT / "eulerlora_client" / "README.md").read_text(encoding="utf-8")
TOUR = [
    (block, output.code)
    for document in DOCUMENTS
    for block, output in pairwise(code_blocks(document.read_text(encoding="utf-8")))
    if output.language == "text"
]
URL = "127.0.0.1:8000"
LONGEST_EXAMPLE = 12
PROGRAM = "$ eulerlora triage "


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The loopback port of a server of the embedded model with an audit log."""
    audit = AuditLog(tmp_path_factory.mktemp("audit") / "audit.jsonl", SECRET)
    with run_server(app_of(EulerLoRA.default(), audit=audit)) as port:
        yield port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the examples."""
    shutil.copyfile(ROOT / "docs" / "images" / "example-lesion.jpg", tmp_path / "lesion.jpg")
    (tmp_path / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shape(text: str) -> str:
    """A text without what depends on the model: numbers, names of classes and decisions.

    Every line of reasons, data sets or classes becomes one mark.
    """
    words = "|".join((*TITLES.values(), *(re.escape(one) for one in Disposition)))
    lines = []
    for line in text.splitlines():
        masked = re.sub(r"-?\d[\d.]*%?", "#", re.sub(rf"\b({words})\b", "DISPOSITION", line))
        masked = re.sub(r"^- .*|^.*: sensitivity #, .*", "-", masked)
        masked = re.sub(r"^resembles .* with", "resembles CLASS with", masked)
        masked = re.sub(r"^\w+ #$", "CLASS #", masked)
        if masked != "-" or lines[-1:] != ["-"]:
            lines.append(masked)
    return "\n".join(line for line in lines if line != "-")


@pytest.mark.parametrize(
    ("block", "recorded"), TOUR, ids=["one", "many", "decision", "others", "command"]
)
def test_the_recorded_tour_runs(
    block, recorded: str, embedded: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if block.language == "console":
        done = run(
            "triage",
            *shlex.split(block.code.removeprefix(PROGRAM)),
            "--url",
            f"http://127.0.0.1:{embedded}",
        )
        assert recorded_table(recorded) == recorded_table(done.out), done.out
        return
    assert block.language == "python"
    assert len(list(filter(None, block.code.splitlines()))) <= LONGEST_EXAMPLE
    exec(compile(block.code.replace(URL, f"127.0.0.1:{embedded}"), "document", "exec"), {})
    assert shape(recorded) == shape(capsys.readouterr().out)


HOUSE = ROOT / "clinic" / "eulerlora_clinic" / "service" / "page" / "example-house.jpg"


def test_the_examples_show_no_figures_of_an_unfamiliar_picture(
    embedded: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(HOUSE, folder / "lesion.jpg")
    (readme,) = (block for block in code_blocks(README) if block.language == "python")
    for block in (TOUR[0][0], readme):
        exec(compile(block.code.replace(URL, f"127.0.0.1:{embedded}"), "document", "exec"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if "sensitivity" not in line]
    assert any("unfamiliar" in line for line in lines)
    assert [line for line in lines if re.search(r"\d|resembles|uncertain", line)] == []


def contains(actual: Any, expected: Any) -> bool:
    """Whether an answer has the fields of a shortened one."""
    if isinstance(expected, dict):
        return all(contains(actual[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return all(map(contains, actual, expected)) and len(actual) == len(expected)
    return bool(actual == pytest.approx(expected, abs=1e-3))


def test_the_answer_of_plain_http_is_that_of_the_service(embedded: int, folder: Path) -> None:
    blocks = code_blocks(DOCUMENTS[0].read_text(encoding="utf-8"))
    ((curl, answer),) = [
        (curl, answer) for curl, answer in pairwise(blocks) if answer.language == "json"
    ]
    *_, form, url = shlex.split(curl.code)
    name, _, file = form.partition("=@")
    response = httpx.post(
        f"http://127.0.0.1:{embedded}{url.removeprefix('localhost:8000')}",
        files={name: Path(file).read_bytes()}, timeout=SOCKET_TIMEOUT_S,
    )  # fmt: skip
    assert contains(response.json(), json.loads(answer.code)), response.text


def recorded_table(text: str) -> list[str]:
    """The headings and the names of files of a table."""
    lines = text.strip().splitlines()
    return [*lines[0].split(), *sorted({line.split()[-1] for line in lines if ".jpg" in line})]


def test_the_example_of_the_readme_runs(
    live: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = (block for block in code_blocks(README) if block.language == "python")
    exec(compile(block.code.replace(URL, f"127.0.0.1:{live}"), "README", "exec"), {})
    lesion, notes = capsys.readouterr().out.splitlines()
    assert lesion.split()[0] in set(Disposition)
    assert notes.startswith("no result: unsupported_media")
