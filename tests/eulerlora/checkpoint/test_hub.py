"""Models on the Hub: the real client against a server on this machine."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from torch import Tensor

from eulerlora import EulerLoRA, HubError
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.checkpoint.hub import Repository, download
from eulerlora.errors import SettingsError
from eulerlora.exchange.importing import find_source
from tests.eulerlora.exchange.sources import MODELS
from tests.fake_hub import COMMIT, NAME, FakeHub, fake_hub


@pytest.fixture
def hub(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    with fake_hub(checkpoint_folder, monkeypatch, tmp_path / "cache") as running:
        yield running


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_model_of_the_hub_is_that_of_its_folder(
    hub: FakeHub, checkpoint_folder: Path, images: Tensor, revision: str | None
) -> None:
    model = EulerLoRA.from_pretrained(NAME, revision, device="cpu")
    expected = EulerLoRA.load(checkpoint_folder, "cpu")
    assert model.revision == expected.revision
    actual = model.predict(images, "stoch", 2, seed=1).probabilities
    torch.testing.assert_close(actual, expected.predict(images, "stoch", 2, seed=1).probabilities)


def test_a_revision_is_pinned_to_its_commit_and_kept_for_a_machine_without_a_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = download(Repository(NAME))
    assert first.revision == COMMIT
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert download(Repository(NAME, COMMIT)) == first


@pytest.mark.parametrize(
    ("repository", "reason"),
    [
        (Repository(NAME, "absent"), "no such revision"),
        (Repository("org/absent"), "no such repository"),
    ],
)
def test_an_absent_repository_is_an_error_of_one_line(
    hub: FakeHub, repository: Repository, reason: str
) -> None:
    with pytest.raises(HubError, match=f"{repository}.*{reason}") as caught:
        download(repository)
    assert len(str(caught.value).splitlines()) == 1


def test_pickles_are_downloaded_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    MODELS["open_clip with a timm trunk"](source)
    (source / "other.py").write_text("raise SystemExit\n")
    with fake_hub(source, monkeypatch, tmp_path / "cache"):
        found = find_source(f"hf://{NAME}")
        assert (found.name, found.revision) == (NAME, COMMIT)
        names = {path.name for path in found.folder.iterdir()}
    assert names == {"open_clip_config.json", "open_clip_pytorch_model.bin"}


def test_a_folder_is_a_pretrained_model_too(checkpoint_folder: Path) -> None:
    model = EulerLoRA.from_pretrained(str(checkpoint_folder), device="cpu")
    assert model.folder == checkpoint_folder


def test_a_pushed_model_has_the_files_of_its_checkpoint(
    checkpoint_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint_copy / "report").mkdir()
    (checkpoint_copy / "report" / "report.json").touch()
    uploaded: list[Path] = []

    def upload(
        _: object, *, folder_path: Path, repo_id: str, revision: None, **patterns: Any
    ) -> str:
        assert repo_id == NAME
        files = [path for path in folder_path.rglob("*") if path.is_file()]
        names = [path.relative_to(folder_path).as_posix() for path in files]
        for name in filter_repo_objects(names, **patterns):
            uploaded.append(Path(shutil.copy(folder_path / name, tmp_path / "pushed" / name)))
        return "https://hub.test/commit"

    def create(_: object, name: str, *, private: bool, **__: object) -> None:
        assert (name, private) == (NAME, True)

    (tmp_path / "pushed").mkdir()
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    model = EulerLoRA.load(checkpoint_copy, "cpu")
    assert model.push_to_hub(NAME, private=True) == "https://hub.test/commit"
    assert load_checkpoint(tmp_path / "pushed").revision == model.revision
    assert {path.name for path in uploaded} == {
        path.name for path in checkpoint_copy.iterdir() if path.is_file()
    }


def test_a_model_without_a_folder_cannot_be_pushed(checkpoint_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    model.folder = None
    with pytest.raises(SettingsError, match="loaded from a folder"):
        model.push_to_hub(NAME)


def test_without_its_client_the_hub_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"pip install 'eulerlora\[hub\]'"):
        EulerLoRA.from_pretrained(NAME)
