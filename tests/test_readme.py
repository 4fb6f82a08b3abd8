"""README.md: its code runs, and its JSON and figures are those of the program."""

import json
import shlex
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from torchvision.models import VisionTransformer

from eulerlora import EulerLoRA
from examples.pictures import draw_shapes
from tests.markdown import code_blocks
from tests.program import succeed
from tests.service.conftest import app_of
from tests.training.conftest import undrawn_charts

__all__ = ["undrawn_charts"]

QUICK = (
    "--set", "backbone.weights=embedded", "--set", "backbone.image_size=28",
    "--set", "training.epochs=1", "--set", "training.workers=0",
    "--set", "evaluation.calibrated=[4]",
)  # fmt: skip
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Returns the code blocks of the README in one language; "" for blocks without one."""
    return [block.code for block in code_blocks(README) if block.language == language]


def commands(program: str) -> list[list[str]]:
    """Returns the words of the commands of one program in the unlabelled blocks."""
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(f"{program} ")]


def test_the_first_block_answers_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = blocks("python")
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith(json.loads(blocks("json")[0])["label"])


def test_the_block_on_a_folder_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, *train), (_, *serve) = commands("eulerlora")
    monkeypatch.chdir(tmp_path)
    draw_shapes(tmp_path / "pictures", per_class=20)
    succeed(*train, *QUICK)
    assert EulerLoRA.load(serve[-1], "cpu").classes


def test_the_block_on_a_loop_saves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small network in the place of the published one, which would be downloaded."""
    _, code = blocks("python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "torchvision.models.vit_b_32",
        lambda **_: VisionTransformer(224, 32, 1, 2, hidden_dim=32, mlp_dim=64),
    )
    draw_shapes(tmp_path / "pictures", per_class=2)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith("tensor(")
    assert "grad_fn" not in out
    assert EulerLoRA.load("checkpoint", "cpu").classes == ("circle", "square", "triangle")


def test_the_json_block_is_from_the_answer_to_the_curl_call() -> None:
    ((*_, option, form, url),) = commands("curl")
    name, _, path = form.partition("=@")
    assert (option, name) == ("-F", "file")
    query = {key: value[0] for key, value in parse_qs(urlsplit("//" + url).query).items()}
    image = (ROOT / path).read_bytes()
    with TestClient(app_of(EulerLoRA.default())) as client:
        actual = client.post("/predict", params=query, files={"file": (path, image)}).json()
    expected = json.loads(blocks("json")[0])
    assert {key: actual[key] for key in expected} == pytest.approx(expected, abs=1e-3)
