"""The tutorials of examples/ run.

`tests/eulerlora/methods/test_extension.py` trains and serves the method of `write_a_method.py`.
"""

import asyncio
import csv
import itertools
import json
import os
import random
import re
import runpy
import shutil
import socket
import ssl
import subprocess
import sys
from http.client import HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
import yaml
from matplotlib import pyplot
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from PIL import Image
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_calibration_error
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    ViTForImageClassification,
)

from eulerlora import EulerLoRA, __version__
from eulerlora.peft import EulerLoraConfig, sampling
from examples.notebooks import NOTEBOOKS, executed, notebook
from service.http.protocol import protocol_of
from tests.server_process import LONG_TIMEOUTS, START_S, wait_until
from tests.service.conftest import app_of
from tests.service.real_server import LONG_TIMEOUTS as LONG_CONNECTIONS
from tests.service.real_server import SOCKET_TIMEOUT_S, run_server

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = (
    "--set", "training.epochs=1", "--set", "backbone.image_size=28", "--set", "training.workers=0",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a tutorial, which imports its neighbour `pictures`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name))


def shown(name: str) -> list[str]:
    """Returns the lines that a tutorial says it prints."""
    _, block = (EXAMPLES / name).read_text().split("# It prints:\n#\n")
    lines = itertools.takewhile(lambda line: line.startswith("#     "), block.splitlines())
    return [line.removeprefix("#     ") for line in lines]


def assert_printed(lines: list[str], out: str) -> None:
    """Asserts that lines were printed first, with about the same numbers."""
    printed = out.splitlines()[: len(lines)]
    words = ("\n".join(each).replace(",", "").split() for each in (lines, printed))
    for expected, actual in zip(*words, strict=True):
        if re.fullmatch(r"\d+\.\d+", expected):
            assert float(actual) == pytest.approx(float(expected), rel=0.02, abs=0.004)
        else:
            assert actual == expected


def test_the_service_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_server(app_of(EulerLoRA.default())) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        run("ask_the_service.py", monkeypatch)
    out = capsys.readouterr().out
    assert_printed(shown("ask_the_service.py"), out)


def test_the_numbers_of_three_lesions_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("is_it_sure.py", monkeypatch)
    pyplot.close("all")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 + 8 + 3 + 3  # a header, answers, trajectories, sets, auto
    assert all("df" in line.split() for line in lines[12:15])  # the sets, as the text says


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_tutorial_with_outputs(name: str) -> None:
    stored = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    made = notebook(name)
    assert [(c.cell_type, c.source) for c in stored.cells] == [
        (c.cell_type, c.source) for c in made.cells
    ]
    assert any(cell.get("outputs") for cell in stored.cells)
    assert str(EXAMPLES.parent) not in (EXAMPLES / f"{name}.ipynb").read_text()


@pytest.mark.slow
def test_a_notebook_runs() -> None:
    cells = executed(notebook("is_it_sure")).cells
    assert any("image/png" in output.get("data", {}) for output in cells[-2].outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_pictures", "training_loop"])
def test_a_notebook_that_trains_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", " ".join(QUICK))
    executed(notebook(name))


@pytest.mark.slow
def test_the_notebook_of_the_service_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(app_of(EulerLoRA.default())) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        executed(notebook("ask_the_service"))


def test_pictures_of_other_kinds_are_unfamiliar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("unknown_pictures.py", monkeypatch)
    assert_printed(shown("unknown_pictures.py"), capsys.readouterr().out)


def test_the_application_of_the_space_answers_as_the_model_does() -> None:
    """Without Gradio, which no lock has."""
    answer = runpy.run_path(str(EXAMPLES / "space" / "app.py"))["answer"]
    with Image.open(EXAMPLES.parent / "docs" / "images" / "example-lesion.jpg") as lesion:
        probabilities, _ = answer(lesion, 4)
        expected = EulerLoRA.default().predict(lesion, mode="stoch", samples=4)
    assert list(probabilities.values()) == expected.probabilities[0].tolist()
    assert max(probabilities, key=probabilities.get) == expected.labels[0]
    noise = Image.effect_noise((64, 64), 100).convert("RGB")
    assert answer(noise, 4)[0] is None  # an unfamiliar picture has no figures


def test_the_space_names_its_program_and_this_version() -> None:
    space = EXAMPLES / "space"
    front = yaml.safe_load((space / "README.md").read_text().split("---\n")[1])
    assert front["sdk"] == "gradio"
    assert (space / front["app_file"]).is_file()
    assert len(front["short_description"]) <= 60
    assert (space / "requirements.txt").read_text() == f"eulerlora=={__version__}\n"


@pytest.mark.slow
def test_own_pictures_become_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", " ".join(QUICK))
    run("own_pictures.py", monkeypatch)
    assert EulerLoRA.load(folder / "run", "cpu").classes == ("circle", "square", "triangle")
    assert (folder / "run" / "report" / "report.json").exists()


@pytest.mark.slow
def test_a_clinic_fits_serves_and_monitors(tmp_path: Path) -> None:
    lines = script("clinic.py", tmp_path)
    assert (tmp_path / "site" / "policy.toml").exists()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 20
    assert {"alarm", "no alarm"} & set(lines)


@pytest.mark.slow
def test_two_methods_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run("compare_methods.py", monkeypatch, *QUICK)
    out = capfd.readouterr().out
    assert "| EulerLoRA, rank 20, stoch, 4 samples | 3 | 4 |" in out
    assert "## Differences to LoRA, rank 20" in out
    assert (folder / "comparison" / "comparison.tex").exists()
    assert len(list(folder.glob("runs/*/report/report.json"))) == 6


def losses(out: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss'?:? '?([0-9.]+)", out)]


@pytest.mark.parametrize("library", ["torchvision", "timm", "transformers"])
def test_adapters_are_trained_in_a_loop_and_served(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("LIBRARY", library)
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "checkpoint"))
    result = runpy.run_path(str(EXAMPLES / "training_loop.py"))
    epochs = losses(capsys.readouterr().out)
    assert epochs[-1] < epochs[0]
    with torch.no_grad():
        expected = result["model"](result["images"][:4]).softmax(dim=-1).mean(dim=1)
    model = EulerLoRA.load(tmp_path / "checkpoint", device="cpu")
    actual = torch.as_tensor(model.predict(result["images"][:4]).probabilities)
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=1e-5)


def test_adapters_are_trained_with_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "accelerate_loop.py"))
    epochs = losses(capsys.readouterr().out)
    assert len(epochs) == 3
    assert epochs[-1] < epochs[0]


def test_trainer_fine_tunes_a_peft_model_and_saves_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    result = runpy.run_path(str(EXAMPLES / "peft_trainer.py"))
    logged = [entry["loss"] for entry in result["trainer"].state.log_history if "loss" in entry]
    assert logged[-1] < logged[0]
    base = ViTForImageClassification(result["base"].config)
    base.load_state_dict(original_state(result["model"]))
    loaded = PeftModel.from_pretrained(base, tmp_path).eval()
    with torch.no_grad():
        expected = result["model"](pixel_values=result["images"][:4]).logits
        torch.testing.assert_close(loaded(pixel_values=result["images"][:4]).logits, expected)
    card = (tmp_path / "README.md").read_text()
    assert all(f"- `{name}`: " in card for name in ("r", "min_rank", "steps", "scale"))


class StandInForLoraWrapper(nn.Module):
    """What `bayesadapt.lorawrappers.LoraWrapper` does: LoRA with the parts of a layer of PEFT."""

    def __init__(self, lora_layer: LoraLayer, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        parts = ("base_layer", "lora_A", "lora_B", "lora_dropout", "scaling", "active_adapters")
        for name in parts:
            setattr(self, name, getattr(lora_layer, name))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = self.base_layer(x, *args, **kwargs)
        for name in self.active_adapters:
            directions = self.lora_A[name](self.lora_dropout[name](x))
            result = result + self.lora_B[name](directions) * self.scaling[name]
        return result


@pytest.fixture
def wrapper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the tutorial, on the Bayesian Adaptation Gym if it can be imported."""
    if find_spec("bayesadapt") is None:
        module = ModuleType("bayesadapt.lorawrappers")
        monkeypatch.setattr(module, "LoraWrapper", StandInForLoraWrapper, raising=False)
        monkeypatch.setitem(sys.modules, "bayesadapt", ModuleType("bayesadapt"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return run("bayesian_adaptation_gym.py", monkeypatch)["EulerLoraWrapper"]


def language_model(config: LoraConfig) -> PeftModel:
    """A random language model with random adapters, in evaluation mode."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 20}
    base = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1))
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model.eval()


def wrap_layers(model: nn.Module, wrapper: Any) -> None:
    """Replaces the layers of LoRA, as the trainer of the Bayesian Adaptation Gym does."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, wrapper(module, target_modules=[child]))


@torch.no_grad()
def test_a_wrapped_layer_draws_as_eulerlora_in_each_pass(wrapper: Any) -> None:
    config = {"r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM"}
    model = language_model(EulerLoraConfig(**config))
    names = set(model.state_dict())
    tokens = torch.arange(12).reshape(3, 4)
    torch.manual_seed(1)
    with sampling(model, samples=1, seed=None):
        expected = [model(tokens).logits for _ in range(2)]
    wrap_layers(model, wrapper)
    model.eval()
    torch.manual_seed(1)
    for logits in expected:
        torch.testing.assert_close(model(tokens).logits, logits)
    assert not torch.allclose(*expected)
    assert set(model.state_dict()) == names
    with pytest.raises(TypeError, match="EulerLoraConfig"):
        wrap_layers(language_model(LoraConfig(**config, target_modules=["q_proj"])), wrapper)


COLOURS = {
    "red": ["rose", "blood", "ruby"],
    "green": ["grass", "leaf", "fern"],
    "blue": ["sky", "sea", "ink"],
}


def write_texts(folder: Path) -> None:
    """Writes texts of a word of their class among words of none."""
    draw = random.Random(0)
    for part, count in {"train": 16, "test": 10}.items():
        with (folder / f"{part}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "category"])
            for colour, words in COLOURS.items():
                for _ in range(count):
                    others = draw.choices(["the", "a", "is", "was"], k=draw.randint(2, 5))
                    rows.writerow([" ".join([*others, draw.choice(words)]), colour])


def write_encoder(folder: Path) -> None:
    words = ["the", "a", "is", "was", *itertools.chain(*COLOURS.values())]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *words])}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**shape, intermediate_size=24, vocab_size=len(vocabulary))
    BertModel(config).save_pretrained(folder)


def test_a_language_model_is_adapted_compared_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path)
    write_encoder(tmp_path / "encoder")
    arguments = [
        str(tmp_path), "--encoder", str(tmp_path / "encoder"), "--out", str(tmp_path / "out.json"),
        "--epochs", "2", "--rank", "4", "--samples", "3", "--rates", "0.01", "--seeds", "1", "2",
        "--blocks", "1",
    ]  # fmt: skip
    script = run("language_model.py", monkeypatch, *arguments)
    lines = capsys.readouterr().out.splitlines()
    results = json.loads((tmp_path / "out.json").read_text())
    assert {key for key in results if key.startswith("test: EulerLoRA")} == {
        f"test: EulerLoRA, seed {seed}" for seed in (1, 2)
    }
    of_modes = results["test: EulerLoRA, seed 1"]
    assert of_modes["det"]["mutual_information"] < 1e-6 < of_modes["stoch"]["mutual_information"]
    probabilities = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    labels, (confidence, classes) = torch.arange(200) % 3, probabilities.double().max(dim=-1)
    expected = multiclass_calibration_error(probabilities, labels, num_classes=3, n_bins=15)
    actual = script["calibration_error"](confidence, (classes == labels).double())
    assert actual == pytest.approx(expected.item(), abs=1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", None)  # nothing is trained again
        run("language_model.py", monkeypatch, *arguments)
    again = capsys.readouterr().out.splitlines()
    assert again == [line for line in lines if not line.startswith(("penalty ", "valid", "test:"))]
    assert sum("difference" in line or "shown" in line for line in again) == 12
    with pytest.raises(SystemExit, match="same settings"):
        run("language_model.py", monkeypatch, *arguments, "--tokens", "8")


def original_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """Returns the parameters of the base model by their original names."""
    state = model.get_base_model().state_dict()
    return {
        name.replace(".base_layer", "").replace(".original_module", ""): tensor
        for name, tensor in state.items()
        if "lora_" not in name and "modules_to_save" not in name
    }


def script(name: str, folder: Path, **environment: str) -> list[str]:
    """Runs a tutorial in a process of its own; returns the lines that it prints."""
    command = [sys.executable, EXAMPLES / name]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def behind_nginx(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder and the printed lines of the tutorial."""
    if not (shutil.which("nginx") and shutil.which("openssl")):
        pytest.skip("needs nginx and openssl")
    folder = tmp_path_factory.mktemp("behind-nginx")
    return folder / "proxy", script("behind_nginx.py", folder)


@pytest.mark.slow
def test_nginx_passes_requests_with_a_key_and_refuses_others(
    behind_nginx: tuple[Path, list[str]],
) -> None:
    _, (label, quota, *refused) = behind_nginx
    assert label in EulerLoRA.default().classes
    assert quota.startswith("quota exceeded")
    assert refused == shown("behind_nginx.py")


@pytest.mark.slow
def test_nginx_names_the_client_and_keeps_its_connection_to_the_service(
    behind_nginx: tuple[Path, list[str]],
) -> None:
    connections = []

    class Counted(protocol_of(LONG_CONNECTIONS)):
        def connection_made(self, transport: asyncio.Transport) -> None:
            connections.append(transport)
            super().connection_made(transport)

    async def client_of(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(scope["client"][0])(scope, receive, send)

    folder, _ = behind_nginx
    file = folder / "nginx.conf"
    (port,) = re.findall(r"listen 127\.0\.0\.1:(\d+)", file.read_text())
    with run_server(client_of, Counted, trusted_proxies="127.0.0.1") as upstream:
        file.write_text(
            re.sub(r"server 127\S+;", f"server 127.0.0.1:{upstream};", file.read_text())
        )
        nginx = subprocess.Popen(["nginx", "-p", folder, "-e", folder / "error.log", "-c", file])
        try:
            connection = HTTPSConnection(
                "localhost", int(port), source_address=("127.0.0.2", 0), timeout=SOCKET_TIMEOUT_S,
                context=ssl.create_default_context(cafile=folder / "clinic.pem"),
            )  # fmt: skip
            wait_until(lambda: connects(connection), START_S)
            for _ in range(3):
                connection.request("GET", "/", headers={"X-Forwarded-For": "192.0.2.1"})
                assert connection.getresponse().read() == b"127.0.0.2"
            connection.close()
        finally:
            nginx.terminate()
            nginx.wait()
    assert len(connections) == 1


def connects(connection: HTTPSConnection) -> bool:
    """Returns whether the server accepts a connection."""
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.slow
def test_a_replica_of_ray_answers(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    patient = {"EULERLORA_SERVE_" + name: value for name, value in LONG_TIMEOUTS.items()}
    patient["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "600"
    lines = script("on_ray.py", tmp_path, PORT=str(port), **patient)  # and lines of Ray
    answers = [line for line in lines if re.fullmatch(r"\w+ [01]\.\d{4}", line)]
    assert answers == 4 * answers[:1]
    assert "ApplicationStatus.RUNNING" in lines


def test_every_tutorial_is_listed_and_tested() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py") if "\n# %%" in path.read_text()}
    listed, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    assert {name for name in names if f"]({name})" not in listed} == set()
    assert {name for name in names if name not in tests} == set()
