"""Every problem and answer is public, and importing the package is fast."""

import json
import subprocess
import sys
from pathlib import Path

import eulerlora_client
from eulerlora_client.contract import answers, problems

ROOT = Path(__file__).parents[2]
INNER = {"ModelList", "ServiceStatus", "WireModel"}  # not what a method of the clients returns


def test_every_problem_and_wire_model_is_public() -> None:
    for module in (problems, answers):
        defined = {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and kind.__module__ == module.__name__
        }
        assert defined - INNER <= set(eulerlora_client.__all__)


def test_it_imports_neither_torch_nor_fastapi_nor_other_packages() -> None:
    code = (
        "import sys, json, eulerlora_client, eulerlora_client.commands.session;"
        "import eulerlora_client.commands.triage;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"torch", "torchvision", "fastapi", "starlette", "uvicorn", "scipy"}
    assert not loaded & {"eulerlora", "service", "training", "benchmarks"}
