"""Which modules the commands load."""

import subprocess
import sys

HEAVY = {
    "torch", "torchvision", "fastapi", "starlette", "uvicorn", "scipy",
    "eulerlora", "service", "training", "eulerlora_lab",
}  # fmt: skip


def test_the_commands_that_need_a_server_load_no_heavy_library() -> None:
    modules = "eulerlora_clinic.commands.session, eulerlora_clinic.commands.triage"
    program = f"import sys, {modules}; print({HEAVY} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
