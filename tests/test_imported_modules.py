"""Which modules an import or a command loads: heavy libraries only where they are needed."""

import subprocess
import sys

import pytest

PROGRAM = "from eulerlora_contract.program import program"
ABSENT = {
    "import eulerlora, eulerlora.commands": {"torch", "pydantic", "PIL"},
    "from eulerlora import EulerLoRA; EulerLoRA.default('cpu')": {"torchvision", "torch._dynamo"},
    f"{PROGRAM}; program(['--help'], standalone_mode=False)": {"torch", "fastapi", "matplotlib"},
    "import service.app, service.telemetry.observation, service.routes.system": {
        "opentelemetry.sdk", "opentelemetry.exporter",
    },
}  # fmt: skip


@pytest.mark.parametrize("statement", ABSENT)
def test_a_new_interpreter_has_none_of_these_modules_after(statement: str) -> None:
    program = f"import sys; {statement}; print({ABSENT[statement]} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("package", ["eulerlora", "eulerlora_client", "eulerlora_contract"])
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_operating_system_is_named_instead_of_a_missing_module(
    package: str, platform: str
) -> None:
    program = f"import sys; sys.platform = '{platform}'; import {package}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    message = f"ImportError: EulerLoRA runs on Linux, got {platform}"
    assert done.stderr.splitlines()[-1].startswith(message)
