"""A checkpoint as a model of the Hugging Face Hub; needs the extra `hub`."""

import shutil
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin

from eulerlora.checkpoint.hub import FILES, Repository, download, hub_errors


class HubCheckpoint(
    ModelHubMixin,
    library_name="eulerlora",
    pipeline_tag="image-classification",
):
    """The folder of a checkpoint, which the Hub's mixin reads and writes.

    The repository has the files of the checkpoint, card included, but not those of a report.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _save_pretrained(self, save_directory: Path) -> None:
        for pattern in FILES:
            for path in self.folder.glob(pattern):
                shutil.copyfile(path, save_directory / path.name)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **_: Any,
    ) -> Self:
        if Path(model_id).is_dir():
            return cls(Path(model_id))
        options = {
            "cache_dir": cache_dir,
            "force_download": force_download,
            "local_files_only": local_files_only,
            "token": token,
        }
        return cls(download(Repository(model_id, revision), **options).folder)


def load_folder(name: str, revision: str | None = None) -> Path:
    """Returns the folder of a checkpoint: `name` itself, or the snapshot of a repository.

    Raises HubError.
    """
    with hub_errors(name):
        return HubCheckpoint.from_pretrained(name, revision=revision).folder


def push_folder(folder: Path, repository: str, **options: Any) -> str:
    """Uploads the checkpoint in a folder to a repository and returns the URL of the commit.

    options: of `ModelHubMixin.push_to_hub`, such as `private` and `token`. Raises HubError.
    """
    with hub_errors(repository):
        return str(HubCheckpoint(folder).push_to_hub(repository, **options))
