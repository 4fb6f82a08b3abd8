"""README.md: its Python runs, its JSON is what the embedded model answers, its tree is the tree."""

import json
import re
import shlex
import tarfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint import DEFAULT_CHECKPOINT
from service.app import create_service
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
IMAGE = "ISIC_0024306.jpg"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def image(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image that README asks about."""
    folder = tmp_path_factory.mktemp("image")
    with tarfile.open(next(real_data.glob("ham10000*.tar.*"))) as archive:
        member = next(each for each in archive if Path(each.name).name == IMAGE)
        content = archive.extractfile(member)
        assert content is not None
        (folder / IMAGE).write_bytes(content.read())
    return folder / IMAGE


@pytest.mark.data
def test_the_python_block_runs(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python")
    assert len(code.strip().splitlines()) <= 10
    monkeypatch.chdir(image.parent)
    (image.parent / "service").symlink_to(ROOT / "service")
    exec(compile(code, "README.md", "exec"), {})
    assert "mutual information" in capsys.readouterr().out


@pytest.mark.data
def test_the_json_block_is_the_answer_to_the_curl_call(image: Path) -> None:
    command = next(line for block in blocks("") for line in block.splitlines() if "curl" in line)
    *_, url = shlex.split(command)
    query = {key: value[0] for key, value in parse_qs(urlsplit("//" + url).query).items()}
    models = ServedModels([ServedModel.of(EulerLoRA.load(DEFAULT_CHECKPOINT))])
    with TestClient(create_service(models, ServiceSettings(), Lifecycle()).application) as client:
        answer = client.post("/predict", params=query, files={"file": (IMAGE, image.read_bytes())})
    found, shown = answer.json(), json.loads(blocks("json")[0])
    assert list(found) == list(shown)
    for key, value in shown.items():
        if key != "request_id":
            assert found[key] == approximately(value), key


def approximately(value: object) -> object:
    """Floats may differ in the last digits between machines."""
    numbers = isinstance(value, float) or (
        isinstance(value, dict) and all(isinstance(each, float) for each in value.values())
    )
    return pytest.approx(value, abs=1e-3) if numbers else value


def test_the_tree_names_every_module() -> None:
    tree = next(block for block in blocks("") if block.startswith("eulerlora/"))
    for package in ("eulerlora", "training", "service", "benchmarks"):
        section = tree[tree.index(f"\n{package}/") if package != "eulerlora" else 0 :]
        for module in sorted((ROOT / package).glob("*.py")):
            if module.name != "__init__.py":
                assert re.search(rf"\b{re.escape(module.name)}\b", section), module


def test_links_lead_to_files_of_the_project() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
