"""The search for unneeded files in the image."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from deploy.image_test import component_list, findings

ROOT = Path(__file__).parents[2]
SITE_PACKAGES = "opt/eulerlora/lib/python3.12/site-packages"


def test_the_build_context_has_every_file_that_the_image_copies() -> None:
    copies = [
        line.split()[1:-1]
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from=" not in line
    ]
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    sources = {source for line in copies for source in line}
    assert {"service", "requirements/serve.lock"} < sources
    assert {s for s in sources if not {f"!{s}", f"!{s}/"} & set(kept)} == set()


@pytest.mark.parametrize("name", ["serve", "train", "test"])
def test_a_cpu_installs_the_lock_without_what_cuda_needs(name: str) -> None:
    lock = ROOT / "requirements" / f"{name}.lock"
    kept = subprocess.run(
        ["awk", "-f", ROOT / "requirements" / "without_torch.awk", lock],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    pin = re.compile(r"^([a-z0-9-]+)==", re.MULTILINE)
    left_out = set(pin.findall(lock.read_text())) - set(pin.findall(kept))
    assert {"torch", "torchvision", "triton", "nvidia-cublas"} <= left_out
    assert {name.partition("-")[0] for name in left_out} <= {
        "torch", "torchvision", "triton", "nvidia", "cuda",
    }  # fmt: skip
    hashes = [part.count("--hash=") for part in pin.split(kept)[2::2]]
    assert min(hashes) > 0
    assert "numpy==" in kept


def test_files_that_the_server_needs_are_no_findings(tmp_path: Path) -> None:
    for name in ("usr/bin/ld.so", f"{SITE_PACKAGES}/numpy/tests/test_a.py", "tmp/.git/config"):
        create(tmp_path / name, 0o755)
    assert list(findings(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "mode", "finding"),
    [
        ("usr/bin/su", 0o4755, "setuid or setgid"),
        ("usr/bin/chage", 0o2755, "setuid or setgid"),
        ("etc/passwd", 0o666, "writable by all users"),
        ("usr/bin/x86_64-linux-gnu-gcc-12", 0o755, "build tool"),
        ("usr/bin/g++", 0o755, "build tool"),
        ("usr/bin/make", 0o755, "build tool"),
        ("root/.cache/pip/http/a", 0o644, "cache of pip"),
        (f"{SITE_PACKAGES}/pip/__init__.py", 0o644, "not needed for serving"),
        (f"{SITE_PACKAGES}/sklearn/__init__.py", 0o644, "not needed for serving"),
        (f"{SITE_PACKAGES}/training/__init__.py", 0o644, "not needed for serving"),
        (f"{SITE_PACKAGES}/service/tests/test_app.py", 0o644, "tests of the project"),
        (f"{SITE_PACKAGES}/torch/include/a.h", 0o644, "only for a compiler"),
        (f"{SITE_PACKAGES}/nvidia/lib/libcudart_static.a", 0o644, "only for a compiler"),
        ("source/.git/config", 0o644, "repository"),
        ("root/.netrc", 0o600, "private to the machine of the build"),
    ],
)
def test_an_unneeded_file_is_a_finding(tmp_path: Path, name: str, mode: int, finding: str) -> None:
    create(tmp_path / name, mode)
    (line,) = findings(tmp_path)
    assert line.startswith(f"{finding}: /{name.partition('/')[0]}")


def test_a_package_index_in_the_settings_of_pip_is_a_finding(tmp_path: Path) -> None:
    settings = create(tmp_path / "etc/pip.conf", 0o644)
    assert list(findings(tmp_path)) == []
    settings.write_text("[global]\nindex-url = https://name:password@index\n")
    assert list(findings(tmp_path)) == ["private to the machine of the build: /etc/pip.conf"]


def create(file: Path, mode: int) -> Path:
    file.parent.mkdir(parents=True)
    file.touch()
    file.chmod(mode)
    return file


def test_a_missing_or_incomplete_list_of_components_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "sbom.cdx.json"
    complete = {"bomFormat": "CycloneDX", "components": [{"name": "torch"}, {"name": "fastapi"}]}
    assert list(component_list(file))
    for broken in ({}, {**complete, "bomFormat": "SPDX"}, {**complete, "components": []}):
        file.write_text(json.dumps(broken))
        assert list(component_list(file))
    file.write_text(json.dumps(complete))
    assert not list(component_list(file))
