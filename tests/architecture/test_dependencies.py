"""Dependencies by purpose: what a package imports, what pyproject.toml declares, what is locked."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from itertools import chain
from pathlib import Path
from typing import Any

import grimp
import pytest

from eulerlora import __version__

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "eulerlora", "eulerlora_client", "eulerlora_clinic", "eulerlora_contract", "service",
    "training",
)  # fmt: skip
PURPOSES = ("client", "serve", "train", "test")
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def settings(folder: str = ".") -> dict[str, Any]:
    """Returns the pyproject.toml of a distribution."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def project(folder: str = ".") -> dict[str, Any]:
    """Returns the `project` table of a distribution."""
    table: dict[str, Any] = settings(folder)["project"]
    return table


def group(name: str) -> set[str]:
    """Returns the distributions of a dependency group, without the groups that it includes."""
    entries = settings()["dependency-groups"][name]
    return names([entry for entry in entries if isinstance(entry, str)])


def names(requirements: list[str]) -> set[str]:
    """Returns the distribution names of requirements, as the locks spell them."""
    distributions = [re.split(r"[\[<>=~!; ]", requirement)[0] for requirement in requirements]
    return normalized(distributions)


def normalized(distributions: list[str]) -> set[str]:
    """Returns the names as the locks spell them."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in distributions}


def declared(package: str) -> set[str]:
    """Returns the distributions that a package may import."""
    if package in {"eulerlora_client", "eulerlora_contract"}:
        return names(project(package)["dependencies"]) | contract()
    if package == "eulerlora_clinic":
        clinic = project("clinic")
        needed = clinic["dependencies"] + clinic["optional-dependencies"]["dicom"]
        return names(needed) | declared("service") | declared("training")
    chosen = {
        "service": ["serve"],
        "training": ["train"],
        "eulerlora": ["hub", "onnx", "openvino", "peft", "signing", "notebook"],
    }
    extras = project()["optional-dependencies"]
    optional = [requirement for extra in chosen[package] for requirement in extras[extra]]
    return names(project()["dependencies"]) | names(optional) | contract()


def contract() -> set[str]:
    """Returns the distributions that the contract brings, with those of its only extra."""
    table = project("eulerlora_contract")
    return names(table["dependencies"]) | names(table["optional-dependencies"]["progress"])


def pins(purpose: str) -> dict[str, str]:
    """Returns the locked version of each distribution."""
    return dict(PIN.findall((ROOT / "requirements" / f"{purpose}.lock").read_text()))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_purpose_declares(package: str) -> None:
    graph = grimp.build_graph(package, include_external_packages=True, cache_dir=None)
    external = {m for m in graph.modules if m.partition(".")[0] not in PACKAGES}
    distributions = packages_distributions()
    undeclared = {
        module: sorted(graph.find_modules_that_directly_import(module))
        for module in external - set(sys.stdlib_module_names)
        if not declared(package) & normalized(distributions.get(module, []))
    }
    assert undeclared == {}


def test_the_service_starts_without_the_training_libraries() -> None:
    absent = set(pins("test")) - set(pins("serve"))
    blocked = {
        module
        for module, distributions in packages_distributions().items()
        if normalized(distributions) <= absent
    } | {"training"}
    assert {"sklearn", "matplotlib", "tensorboard"} <= blocked
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(blocked)}))\n"
        "for name in ('service.app', 'service.process', 'service.commands'):\n"
        "    importlib.import_module(name)\n"
        "from eulerlora.methods.registry import methods\n"
        "assert 'eulerlora' in methods()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_lock_has_hashes_no_address_and_the_versions_of_the_others(purpose: str) -> None:
    text = (ROOT / "requirements" / f"{purpose}.lock").read_text()
    assert text.count("--hash=sha256:") >= len(pins(purpose)) > 0
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", text)
    assert pins(purpose).items() <= pins("test").items()


def test_a_lock_pins_every_dependency_of_its_purpose_and_no_other_extra() -> None:
    own = names(project()["dependencies"])
    client = names(project("eulerlora_client")["dependencies"]) | contract()
    client -= {"eulerlora-contract"}
    clinic = names(project("clinic")["dependencies"]) - {"eulerlora-client"}
    extras = {name: names(needed) for name, needed in project()["optional-dependencies"].items()}
    core = own - {"eulerlora-contract"}
    assert client <= set(pins("client"))
    for purpose in ("serve", "train"):
        assert core | client | clinic | extras[purpose] <= set(pins(purpose))
    assert extras["openvino"] <= set(pins("serve"))
    assert "openvino-telemetry" not in set(pins("serve")) | set(pins("test"))
    assert extras["serve"] | extras["train"] <= set(pins("test"))
    assert group("test") | group("development") <= set(pins("test"))
    of_training = extras["train"] - extras["serve"] - core - client - clinic
    assert of_training & set(pins("serve")) <= {"platformdirs"}  # which model-signing needs
    assert not {"torch", "torchvision", "fastapi", "uvicorn"} & set(pins("client"))


def test_all_distributions_have_one_version_and_require_it_of_each_other() -> None:
    folders = (".", "eulerlora_contract", "eulerlora_client", "clinic", "lab")
    projects = {project(folder)["name"]: project(folder) for folder in folders}
    for name, table in projects.items():
        assert table.get("version", __version__) == __version__, name
        needed = [*table["dependencies"], *chain(*table.get("optional-dependencies", {}).values())]
        pinned = [one for one in needed if names([one]) & (set(projects) - {name})]
        assert pinned or name == "eulerlora-contract"
        assert {one.partition("==")[2] for one in pinned} <= {__version__}, (name, pinned)
    assert [version(name) for name in set(projects) - {"eulerlora-lab"}] == [__version__] * 4


def test_the_core_requires_nothing_of_the_client() -> None:
    required = names(project()["dependencies"] + project("eulerlora_contract")["dependencies"])
    assert not {"eulerlora-client", "httpx", "jinja2", "tabulate", "tenacity", "tqdm"} & required


def test_every_command_names_its_extra() -> None:
    extras = {"service": "[serve]", "training": "[train]", "eulerlora": ""}
    for target in project()["entry-points"]["eulerlora.commands"].values():
        module, _, extra = target.partition(" ")
        assert extra == extras[module.partition(".")[0]]
