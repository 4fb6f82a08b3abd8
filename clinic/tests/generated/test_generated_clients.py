"""Clients that public generators make of the OpenAPI document call every operation.

The generators are installed into a temporary folder: their requirements contradict those of other
tests, one is a package of npm and one a Java program. Without an index of packages, or a compiler
of the language (Debian: default-jdk-headless and libhttpmime-java, golang-go), tests are skipped.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clinic.tests.audit_entries import SECRET
from clinic.tests.runs import mel_policy
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora_clinic.audit.log import AuditLog
from service.inference.engine import ServedModel
from tests.service.real_server import run_server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
OPENAPI_GENERATOR = "openapi-generator-cli==7.26.0"
NPM_PACKAGES = ("@hey-api/openapi-ts@0.95.0", "typescript@5.9.3")
SUCCESS = {
    "predict": "Prediction",
    "predict_batch": "PredictionBatch",
    "embed": "ImageEmbedding",
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
    with run_server(of_later_version(app)) as port:
        yield f"http://127.0.0.1:{port}"


def of_later_version(app: ASGIApp) -> ASGIApp:
    """The same service with a further field and a further warning in all answers."""

    def later(value: Any) -> Any:
        if isinstance(value, list):
            return [later(one) for one in value]
        if not isinstance(value, dict):
            return value
        changed = {name: later(one) for name, one in value.items()}
        if "warnings" in value:
            changed["warnings"].append({"code": "later", "message": "Of a later version."})
        return changed | {"later": 1} if "request_id" in value else changed

    async def changed(scope: Scope, receive: Receive, send: Send) -> None:
        start, body = list[Message](), b""

        async def sent(message: Message) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.append(message)
                return
            body += message["body"]
            if message.get("more_body"):
                return
            headers = dict(start[0]["headers"])
            if b"json" in headers[b"content-type"] and scope["path"] != "/openapi.json":
                body = json.dumps(later(json.loads(body))).encode()
                headers[b"content-length"] = b"%d" % len(body)
            await send(start[0] | {"headers": [*headers.items()]})
            await send({"type": "http.response.body", "body": body})

        await app(scope, receive, sent if scope["type"] == "http" else send)

    return changed


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
    types = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python)
    output(*types, target, folder=tmp_path)
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


def openapi_generator(language: str, document: Path, target: Path, folder: Path) -> Path:
    """Generates a client by OpenAPI Generator; returns the generator's Java archive."""
    wheel = ("--no-deps", "--target", folder / "generator", OPENAPI_GENERATOR)
    install(sys.executable, "-m", "pip", "install", "--quiet", *wheel, folder=folder)
    archive = folder / "generator" / "openapi_generator_cli" / "openapi-generator.jar"
    options = {
        "java": ("--library", "native", "--additional-properties", "openApiNullable=false"),
        "go": (
            "--additional-properties",
            "withGoMod=false,disallowAdditionalPropertiesIfNotPresent=false",
        ),
    }[language]
    generate = ("java", "-jar", archive, "generate", "-g", language, "-i", document, "-o", target)
    output(*generate, *options, folder=folder)
    return archive


def java_client(document: Path, folder: Path) -> list[object]:
    """Compiles `Calls.java` with a generated client; returns the command that runs it."""
    libraries = [Path("/usr/share/java", f"http{name}.jar") for name in ("mime", "client", "core")]
    if shutil.which("javac") is None or not all(map(Path.exists, libraries)):
        pytest.skip("requires a Java compiler and libhttpmime-java")
    client = folder / "client"
    archive = openapi_generator("java", document, client, folder)  # it has Jackson
    annotations = folder / "javax" / "annotation"
    annotations.mkdir(parents=True)
    for name in ("Generated", "Nonnull", "Nullable"):  # used by the client, in no Java 17
        (annotations / f"{name}.java").write_text(
            f"package javax.annotation;\npublic @interface {name} "
            '{ String[] value() default {}; String date() default ""; '
            'String comments() default ""; }\n',
            encoding="utf-8",
        )
    logging = Path("/usr/share/java/commons-logging.jar")
    path = ":".join(map(str, (folder / "classes", archive, *libraries, logging)))
    sources = [*(client / "src" / "main").rglob("*.java"), *annotations.iterdir()]
    compiler = ("javac", "-nowarn", "-d", folder / "classes", "-cp", path)
    output(*compiler, *sources, HERE / "Calls.java", folder=folder)
    return ["java", "-cp", path, "Calls"]


def go_client(document: Path, folder: Path) -> list[object]:
    """Compiles `calls.go` with a generated client; returns the command that runs it."""
    if shutil.which("go") is None or shutil.which("java") is None:
        pytest.skip("requires a Go compiler and Java")
    openapi_generator("go", document, folder / "openapi", folder)
    shutil.rmtree(folder / "openapi" / "test", ignore_errors=True)  # needs a package of its own
    (folder / "go.mod").write_text("module calls\n\ngo 1.19\n", encoding="utf-8")
    shutil.copy(HERE / "calls.go", folder)
    output("go", "build", "-o", "calls", ".", folder=folder)
    return [folder / "calls"]


@pytest.mark.parametrize("client", [java_client, go_client])
def test_clients_of_openapi_generator_send_samples_and_read_seeds_of_40_pictures(
    client: Callable[[Path, Path], list[object]], url: str, document: Path, tmp_path: Path
) -> None:
    pictures = [tmp_path / f"{index}.png" for index in range(40)]
    pixels = np.random.default_rng(0)
    for file in pictures:
        Image.fromarray(pixels.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(file)
    folder = tmp_path / "client"
    folder.mkdir()
    (no_picture := tmp_path / "notes.txt").write_text("no picture", encoding="utf-8")
    calls = (*client(document, folder), url, no_picture, *pictures)
    lines = output(*calls, folder=folder).splitlines()
    answers = []
    for file in pictures:
        sent = httpx.post(f"{url}/predict?mode=stoch&samples=2", content=file.read_bytes()).json()
        answers.append(f"{sent['seed']} {sent['trajectories']} {sent['label']} true")
    assert lines[:40] == answers
    assert any(int(answer.split()[0]) >= 2**31 for answer in answers)
    label = answers[0].split()[2]
    others = dict(line.split() for line in lines[40:])
    expected = {
        "batch": "Prediction,ProblemDocument", "triage_batch": "TriageResult,ProblemDocument",
        "triage": label, "problem": "404", "card": "7", "metrics": "true",
    }  # fmt: skip
    assert expected.items() <= others.items()
    assert others.keys() == {*expected, "auto", "model"}
