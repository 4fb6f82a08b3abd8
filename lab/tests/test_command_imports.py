"""What the modules of the commands import, which `eulerlora --help` waits for."""

import subprocess
import sys

COMMANDS = (
    "eulerlora_lab.onnx_commands",
    "eulerlora_lab.pretraining.commands",
    "eulerlora_lab.tables.commands",
)
HEAVY = ("torch", "torchvision", "sklearn", "scipy", "matplotlib", "accelerate", "PIL", "ray")


def test_command_modules_import_no_heavy_library() -> None:
    imports = "; ".join(f"import {name}" for name in COMMANDS)
    code = f"import sys; {imports}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
