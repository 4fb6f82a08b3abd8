"""A method of another distribution: the tutorial's example, from training to serving."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.weights import save_backbone
from tests.conftest import random_backbone
from tests.training.conftest import RECIPE, image_folder

__all__ = ["image_folder"]  # a fixture

ROOT = Path(__file__).parents[3]
TUTORIAL = ROOT / "examples" / "write_a_method.py"
PROGRAM = """\
import json, sys
from pathlib import Path
from fastapi.testclient import TestClient
from eulerlora_contract.program import program
from eulerlora import EulerLoRA
from service.app import create_app
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.settings import ServiceSettings

recipe, images, out, photo = sys.argv[1:]

def run(*arguments):
    arguments = [*arguments, "--data", images, "--device", "cpu"]
    program.main(arguments, "eulerlora", standalone_mode=False)

run("train", recipe, "--out", out, "--no-evaluation")
run("calibrate", out, "--out", out + "-new")
out += "-new"
run("evaluate", out, "--out", out + "-report", "--samples", "2")
settings = ServiceSettings(deadline_s=120)
lifecycle = Lifecycle(settings, waits=True)
lifecycle.serve(ServedModels([ServedModel(EulerLoRA.load(out, "cpu"))]))
with TestClient(create_app(lifecycle, settings)) as client:
    query = {"mode": "stoch", "samples": 2, "seed": 1}
    png = {"content-type": "image/png"}
    answer = client.post("/predict", params=query, content=Path(photo).read_bytes(), headers=png)
print(json.dumps({"status": answer.status_code, "answer": answer.json()}))
"""


@pytest.mark.slow
def test_a_method_of_another_distribution_is_trained_evaluated_and_served(
    image_folder: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    information = site / "jitter-1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(TUTORIAL, site)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: jitter\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[eulerlora.methods]\njitter = write_a_method:JitterMethod\n"
    )
    save_backbone(tmp_path / "backbone.safetensors", random_backbone(), {}, torch.float16)
    recipe = RECIPE + "calibrated = [2]\n"
    (tmp_path / "jitter.toml").write_text(recipe + '[method]\nname = "jitter"\nscale = 0.5\n')
    photo = next((image_folder / "test").rglob("*.png"))
    out = tmp_path / "run"
    arguments = [tmp_path / "jitter.toml", image_folder, out, photo]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    served = json.loads(done.stdout.splitlines()[-1])
    assert served["status"] == 200, served
    config = json.loads((out / "config.json").read_text())
    assert config["method"] == {"name": "jitter", "scale": 0.5}
    options = [entry["options"] for entry in config["thresholds"]]
    assert ("stoch", 2) in {(one["mode"], one["samples"]) for one in options}
    assert "jitter, scale 0.5" in (out / "README.md").read_text()
