"""Python processes start by `eulerlora_contract.processes` only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "clinic/eulerlora_clinic", "eulerlora", "eulerlora_client", "eulerlora_contract",
    "lab/eulerlora_lab", "service", "training",
)  # fmt: skip
MODULES = {"subprocess", "multiprocessing", "pty", "popen2"}
_ENDS_OF_EXEC = ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
NAMES = {
    "sys.executable", "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.posix_spawnp",
    *(f"os.{kind}{end}" for kind in ("exec", "spawn") for end in _ENDS_OF_EXEC),
}  # fmt: skip
ENDS = {
    "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell",
    "ProcessPoolExecutor",
}  # fmt: skip
EXPECTED = {
    "eulerlora_contract/processes.py": {"subprocess", "sys.executable"},
    "service/decoding/fork_server.py": {"subprocess"},  # its constants, for `start_python`
    "service/decoding/worker.py": {"os.fork"},  # of the isolated fork server
    "lab/eulerlora_lab/adaptation.py": {"subprocess"},  # git
    "lab/eulerlora_lab/tables/local.py": {"os.execvp", "subprocess"},  # a `python_command`
    "training/optimisation/run.py": {"subprocess"},  # git
}


def starts(code: str) -> Iterator[str]:
    """Yields what code can start a process with: modules, and names with their modules."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("DataLoader"):
            arguments = {word.arg for word in node.keywords}
            names = [] if "multiprocessing_context" in arguments else ["DataLoader"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value in MODULES else []  # import_module, getattr
        else:
            continue
        for name in names:
            parts = name.split(".")
            if name in NAMES or parts[-1] in ENDS or name == "DataLoader":
                yield name
            elif found := MODULES.intersection(parts[:2]):
                yield found.pop()


def test_no_other_module_can_start_a_process() -> None:
    found = {
        str(path.relative_to(ROOT)): set(starts(path.read_text()))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "benchmarks" not in path.parts  # they measure servers in processes of their own
    }
    assert {path: names for path, names in found.items() if names} == EXPECTED


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from asyncio.subprocess import PIPE",
        "from asyncio import create_subprocess_exec",
        "loop.subprocess_exec(factory, 'python')",
        "import torch.multiprocessing as mp",
        "from torch import multiprocessing",
        "from concurrent.futures import ProcessPoolExecutor",
        "import sys; run([sys.executable])",
        "from sys import executable",
        "import os; os.execv('/bin/sh', [])",
        "from os import posix_spawn",
        "import_module('subprocess').run",
        "DataLoader(images, num_workers=2)",
    ],
)
def test_a_start_is_noticed(code: str) -> None:
    assert [*starts(code)]
