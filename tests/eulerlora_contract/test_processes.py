"""Processes that the program starts: isolated, with a clean environment, and protected."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eulerlora_contract.processes import forget_variable, module_path, start_python

SECRET = "EULERLORA_AUDIT_SECRET"
TELLS = """
import ctypes, json, os, resource, sys
dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
facts = [sys.argv[1:], dict(os.environ), sys.path, dumpable, sys.flags.isolated, __name__]
print(json.dumps(facts), flush=True)
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that tells of its process, a secret, and a working folder with foreign modules."""
    modules, folder = tmp_path / "modules", tmp_path / "foreign"
    modules.mkdir()
    (modules / "tells.py").write_text(TELLS)
    folder.mkdir()
    for name in ("resource", "json", "runpy", "sitecustomize", "usercustomize", "tells"):
        (folder / f"{name}.py").write_text("raise SystemExit('foreign code ran')")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(SECRET, "the secret")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_python_process_is_isolated_and_protected() -> None:
    with start_python(
        "tells", "one", "--two", environment={"ADDED": "3"}, stdout=subprocess.PIPE
    ) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    arguments, environment, path, dumpable, is_isolated, name = json.loads(output)
    assert (arguments, name) == (["one", "--two"], "__main__")
    assert environment["ADDED"] == "3"
    assert environment.keys() <= {
        "ADDED", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TMPDIR",
    }  # fmt: skip
    assert path == module_path()
    assert (dumpable, is_isolated) == (0, 1)


def test_the_module_path_has_no_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = [folder for folder in sys.path if folder]
    for first in ("", str(Path.cwd())):
        monkeypatch.setattr(sys, "path", [first, *rest])
        assert module_path() == rest
    monkeypatch.setattr(sys, "path", ["/elsewhere", *rest])
    assert module_path() == ["/elsewhere", *rest]


def test_a_program_in_the_working_folder_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Path(__file__).parents[2]
    monkeypatch.chdir(sources)
    monkeypatch.setattr(sys, "path", [str(sources), "/lib"])
    assert module_path() == ["/lib", str(sources)]


def test_a_forgotten_variable_is_not_in_proc_either() -> None:
    code = (
        "import os, pathlib; from eulerlora_contract.processes import forget_variable as forget;"
        f"forget('{SECRET}'); forget('{SECRET}'); assert '{SECRET}' not in os.environ;"
        "print(pathlib.Path('/proc/self/environ').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert "PATH=" in done.stdout
    assert "the secret" not in done.stdout
    forget_variable(SECRET)
    assert SECRET not in os.environ
