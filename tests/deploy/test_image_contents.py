"""The search for what has no place in the image."""

from pathlib import Path

import pytest

from deploy.image_contents import findings

SITE_PACKAGES = "opt/eulerlora/lib/python3.12/site-packages"


def test_nothing_is_found_in_what_the_server_needs(tmp_path: Path) -> None:
    for name in ("usr/bin/ld.so", f"{SITE_PACKAGES}/numpy/tests/test_a.py", "tmp/.git/config"):
        made(tmp_path / name, 0o755)
    assert list(findings(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "mode", "found"),
    [
        ("usr/bin/su", 0o4755, "setuid or setgid"),
        ("usr/bin/chage", 0o2755, "setuid or setgid"),
        ("etc/passwd", 0o666, "writable by anyone"),
        ("usr/bin/x86_64-linux-gnu-gcc-12", 0o755, "a build tool"),
        ("usr/bin/g++", 0o755, "a build tool"),
        ("usr/bin/make", 0o755, "a build tool"),
        ("root/.cache/pip/http/a", 0o644, "pip's cache"),
        (f"{SITE_PACKAGES}/pip/__init__.py", 0o644, "not needed for serving"),
        (f"{SITE_PACKAGES}/service/tests/test_app.py", 0o644, "our own tests"),
        (f"{SITE_PACKAGES}/torch/include/a.h", 0o644, "of use only to a compiler"),
        (f"{SITE_PACKAGES}/nvidia/lib/libcudart_static.a", 0o644, "of use only to a compiler"),
        ("source/.git/config", 0o644, "a repository"),
        ("root/.netrc", 0o600, "what the machine that built it knows"),
    ],
)
def test_ballast_is_found(tmp_path: Path, name: str, mode: int, found: str) -> None:
    made(tmp_path / name, mode)
    (line,) = findings(tmp_path)
    assert line.startswith(f"{found}: /{name.partition('/')[0]}")


def test_a_package_index_in_pips_settings_is_found(tmp_path: Path) -> None:
    settings = made(tmp_path / "etc/pip.conf", 0o644)
    assert list(findings(tmp_path)) == []
    settings.write_text("[global]\nindex-url = https://name:password@index\n")
    assert list(findings(tmp_path)) == ["what the machine that built it knows: /etc/pip.conf"]


def made(file: Path, mode: int) -> Path:
    """An empty file with its folders."""
    file.parent.mkdir(parents=True)
    file.touch()
    file.chmod(mode)
    return file
