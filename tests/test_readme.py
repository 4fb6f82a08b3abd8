"""README.md: its code runs, its JSON is the answer of the service, its results are measured."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, stored_revision
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.results import performance
from service.app import create_service
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings
from tests.markdown import code_blocks
from tests.program import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Returns the code blocks of the README in one language; "" for blocks without one."""
    return [block.code for block in code_blocks(README) if block.language == language]


def commands(program: str) -> list[list[str]]:
    """Returns the words of the commands of one program in the unlabelled blocks."""
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(f"{program} ")]


def test_the_python_block_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith(json.loads(blocks("json")[0])["label"])
    assert "mutual information" in out


def test_the_json_block_is_the_answer_to_the_curl_call() -> None:
    ((*_, option, form, url),) = commands("curl")
    name, _, path = form.partition("=@")
    assert (option, name) == ("-F", "file")
    query = {key: value[0] for key, value in parse_qs(urlsplit("//" + url).query).items()}
    models = ServedModels([ServedModel.of(EulerLoRA.default())])
    image = (ROOT / path).read_bytes()
    with TestClient(create_service(models, ServiceSettings(), Lifecycle()).application) as client:
        actual = client.post("/predict", params=query, files={"file": (path, image)}).json()
    expected = json.loads(blocks("json")[0])
    assert list(actual) == list(expected)
    for key in expected.keys() - {"request_id"}:
        assert actual[key] == approximately(expected[key]), key


def approximately(value: Any) -> Any:
    """Returns a value that equals `value` up to the rounding of its numbers."""
    if isinstance(value, dict):
        return {key: approximately(entry) for key, entry in value.items()}
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def test_the_predict_command_answers_for_the_example_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (arguments,) = [words[1:] for words in commands("eulerlora") if words[1] == "predict"]
    monkeypatch.chdir(ROOT)
    done = run(*arguments)
    assert (done.status, done.err) == (0, "")
    assert json.loads(blocks("json")[0])["label"] in done.out


def test_readme_and_card_have_the_measured_performance_of_the_packaged_policy() -> None:
    policy = default_policy()
    measured = performance(policy)
    assert measured is not None
    assert {row[0] for row in measured.summary.rows} >= {"PH2", "PAD-UFES-20"}
    assert measured.summary.markdown in README
    assert measured.markdown in (DEFAULT_CHECKPOINT / "README.md").read_text()
    assert policy.evidence is not None
    assert policy.evidence.revision == stored_revision(DEFAULT_CHECKPOINT)
