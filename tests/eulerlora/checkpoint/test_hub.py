"""Models on the Hub: the real client against a server on this machine."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.checkpoint.weights import load_backbone
from eulerlora_contract.errors import HubError, SettingsError
from tests.eulerlora.exchange.sources import MODELS
from tests.fake_hub import COMMIT, NAME, FakeHub, fake_hub
from tests.program import succeed


@pytest.fixture
def hub(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    with fake_hub(checkpoint_folder, monkeypatch, tmp_path / "cache") as running:
        yield running


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
    first = EulerLoRA.from_pretrained(NAME, device="cpu").folder
    assert first.name == COMMIT
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert EulerLoRA.from_pretrained(NAME, COMMIT, device="cpu").folder == first


@pytest.mark.parametrize(
    ("repository", "revision", "stated"),
    [
        (NAME, "absent", f"hf://{NAME}@absent.*no such revision"),
        ("org/absent", None, "hf://org/absent.*no such repository"),
    ],
)
def test_an_absent_repository_is_an_error_of_one_line(
    hub: FakeHub, repository: str, revision: str | None, stated: str
) -> None:
    with pytest.raises(HubError, match=stated) as caught:
        EulerLoRA.from_pretrained(repository, revision)
    assert len(str(caught.value).splitlines()) == 1


def test_pickles_are_downloaded_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    MODELS["open_clip with a timm trunk"](source)
    (source / "other.py").write_text("raise SystemExit\n")
    with fake_hub(source, monkeypatch, tmp_path / "cache"):
        succeed("backbone", "import", f"hf://{NAME}", "--out", tmp_path / "out")
    origin = load_backbone(tmp_path / "out" / "backbone.safetensors").provenance["imported"]
    assert (origin["source"], origin["revision"]) == (NAME, COMMIT)
    names = {path.name for path in (tmp_path / "cache").rglob(f"{COMMIT}/*")}
    assert names == {"open_clip_config.json", "open_clip_pytorch_model.bin"}


def test_a_folder_is_a_pretrained_model_too(checkpoint_folder: Path) -> None:
    model = EulerLoRA.from_pretrained(str(checkpoint_folder), device="cpu")
    assert model.folder == checkpoint_folder


def test_a_pushed_model_has_the_files_of_its_checkpoint(
    checkpoint_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint_copy / "report").mkdir()
    (checkpoint_copy / "report" / "report.json").touch()
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    model = EulerLoRA.load(checkpoint_copy, "cpu")
    with fake_hub(pushed, monkeypatch, tmp_path / "cache") as hub:
        assert model.push_to_hub(NAME, private=True) == f"{hub.url}/{NAME}/commit/{COMMIT}"
        assert EulerLoRA.from_pretrained(NAME, device="cpu").revision == model.revision
    assert [request["visibility"] for request in hub.created] == ["private"]
    assert {path.name for path in pushed.iterdir()} == {
        path.name for path in checkpoint_copy.iterdir() if path.is_file()
    }


def test_a_pushed_model_replaces_the_files_of_an_earlier_one(
    checkpoint_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = shutil.copytree(DEFAULT_CHECKPOINT, tmp_path / "pushed")
    kept = {".gitattributes", "USAGE.md", "known.json"}
    for name in (*kept, "model.sig"):
        (pushed / name).touch()
    with fake_hub(pushed, monkeypatch, tmp_path / "cache"):
        EulerLoRA.load(checkpoint_copy, "cpu").push_to_hub(NAME)
    expected = kept | {path.name for path in checkpoint_copy.iterdir()}
    assert {path.name for path in pushed.iterdir()} == expected


def test_a_model_without_a_folder_cannot_be_pushed(checkpoint_folder: Path) -> None:
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    model.folder = None
    with pytest.raises(SettingsError):
        model.push_to_hub(NAME)


def test_without_its_client_the_hub_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"pip install 'eulerlora\[hub\]'"):
        EulerLoRA.from_pretrained(NAME)
