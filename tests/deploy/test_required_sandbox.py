"""Every deployment refuses to start with decoders that the kernel does not restrict."""

from pathlib import Path

import pytest

from tests.program import succeed

FILES = ("compose.yaml", "eulerlora.service", "chart/templates/_pod.tpl")


@pytest.mark.parametrize("name", FILES)
def test_a_deployment_requires_the_sandbox_of_decoders(deploy_folder: Path, name: str) -> None:
    assert "--require-sandbox" in (deploy_folder / name).read_text().replace("\n", " ").split()


def test_no_other_file_starts_a_service(deploy_folder: Path) -> None:
    files = [one for one in deploy_folder.rglob("*") if one.suffix in (".yaml", ".tpl", ".service")]
    starting = {
        one for one in files if "--keys=" in one.read_text() or "ExecStart=" in one.read_text()
    }
    assert starting == {deploy_folder / name for name in FILES}
    assert "--require-sandbox" in succeed("serve", "--help").out
