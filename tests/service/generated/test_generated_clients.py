"""Clients that public generators make of the OpenAPI document call every operation.

The generators are installed into a temporary folder: their requirements contradict those of other
tests, and the second one is a package of npm. Without an index of packages the tests are skipped.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eulerlora.model import EulerLoRA
from service.audit.log import AuditLog
from service.inference.engine import ServedModel
from tests.eulerlora_client.runs import mel_policy
from tests.service.audit_entries import SECRET
from tests.service.conftest import app_of
from tests.service.real_server import run_server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
NPM_PACKAGES = ("@hey-api/openapi-ts@0.95.0", "typescript@5.9.3")
SUCCESS = {
    "predict": "Prediction",
    "predict_batch": "PredictionBatch",
    "embed": "Embedding",
    "triage": "TriageResult",
    "triage_batch": "TriageBatch",
    "decide": "RecordedDecision",
    "triage_policy": "PolicyDescription",
    "list_models": "ModelList",
    "describe_model": "ModelDetails",
    "model_card": "str",
    "livez": "ServiceStatus",
    "readyz": "ServiceStatus",
    "scrape": "str",
}
"""The type of the answer of each operation."""


@pytest.fixture(scope="module")
def url(model: EulerLoRA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with a policy for the tiny model and an audit log."""
    audit = AuditLog(tmp_path_factory.mktemp("audit") / "audit.jsonl", SECRET)
    app = app_of(ServedModel(model, "# Tiny\n"), policy=mel_policy(), audit=audit)
    with run_server(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def document(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenAPI document of the service; it has the operations of SUCCESS and no others."""
    content = httpx.get(f"{url}/openapi.json").content
    methods = (one for path in json.loads(content)["paths"].values() for one in path.values())
    assert {operation["operationId"] for operation in methods} == SUCCESS.keys()
    file = tmp_path_factory.mktemp("openapi") / "openapi.json"
    file.write_bytes(content)
    return file


@pytest.fixture
def picture(png: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    file.write_bytes(png)
    return file


def install(*command: object, folder: Path) -> None:
    """Runs an installation; skips the test if it fails, as without a network."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"requires an index of packages: {command[0]} failed")


def output(*command: object, folder: Path) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_generated_python_client_calls_every_operation(
    url: str, document: Path, picture: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    output(sys.executable, "-m", "venv", environment, folder=tmp_path)
    python = environment / "bin" / "python"
    install(python, "-m", "pip", "install", "--quiet", PYTHON_GENERATOR, folder=tmp_path)
    target = tmp_path / "generated"
    generate = (python, "-m", "openapi_python_client", "generate", "--meta", "none")
    output(*generate, "--path", document, "--output-path", target, folder=tmp_path)
    answers = json.loads(output(python, HERE / "calls.py", tmp_path, url, picture, folder=tmp_path))
    assert {name: answers.pop(name) for name in SUCCESS} == {
        name: [kind, None] for name, kind in SUCCESS.items()
    }
    assert answers.pop("raw body") == ["Prediction", None]
    assert answers.pop("entries") == ["Prediction", "ProblemDocument"]
    assert answers == {code: ["ProblemDocument", code] for code in answers}
    assert len(answers) == 3


def test_a_generated_typescript_client_calls_every_operation(
    url: str, document: Path, picture: Path, tmp_path: Path
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("requires npm")
    install("npm", "init", "--yes", folder=tmp_path)
    install("npm", "install", "--no-audit", "--no-fund", *NPM_PACKAGES, folder=tmp_path)
    client = ("--output", "generated", "--client", "@hey-api/client-fetch")
    output("npx", "openapi-ts", "--input", document, *client, folder=tmp_path)
    shutil.copy(HERE / "calls.ts", tmp_path)
    compiler = ("npx", "tsc", "--strict", "--skipLibCheck", "--target", "es2022")
    output(*compiler, "--module", "commonjs", "--lib", "es2022,dom,dom.iterable", "calls.ts",
           folder=tmp_path)  # fmt: skip
    answers: dict[str, Any] = json.loads(output("node", "calls.js", url, picture, folder=tmp_path))
    assert answers.keys() == {*SUCCESS, "unsupported_media", "unknown_model"}
    assert all(answers.values())
    assert answers["predict_batch"] == [True, "unsupported_media"]
    assert (answers["unsupported_media"], answers["unknown_model"]) == (
        "unsupported_media", "unknown_model"
    )  # fmt: skip
