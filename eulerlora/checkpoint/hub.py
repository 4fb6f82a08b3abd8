"""Repositories of the Hugging Face Hub; the extra `hub` installs its client, huggingface_hub."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from eulerlora.checkpoint.files import CARD_FILES, FEATURES_FILE, TRAINING_IMAGES_FILE
from eulerlora.checkpoint.signature import SIGNATURE_FILE
from eulerlora.checkpoint.weights import BACKBONE_FILE
from eulerlora_contract.errors import HubError

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
PREFIX = "hf://"
_FILES = ("*.json", "*.safetensors", "*.md", "*.png", *CARD_FILES, "LICENSE*", SIGNATURE_FILE)
_OPTIONAL = (BACKBONE_FILE, *CARD_FILES, FEATURES_FILE, SIGNATURE_FILE, TRAINING_IMAGES_FILE)
"""Files that not every checkpoint has: an upload deletes those of an earlier one."""
_PICKLES = ("pytorch_model*.bin", "open_clip_pytorch_model.bin")


@dataclass(frozen=True)
class Repository:
    """A repository of the Hub.

    Attributes:
        name: ORGANISATION/NAME.
        revision: A branch, a tag or a commit; None for the default.

    Raises:
        HubError: For another name.
    """

    name: str
    revision: str | None = None

    def __post_init__(self) -> None:
        if REPOSITORY.fullmatch(self.name) is None:
            missing = "" if Path(self.name).is_dir() else ", and there is no such folder"
            raise HubError(f"expected a repository ORGANISATION/NAME, got {self.name!r}{missing}")

    @classmethod
    def of_url(cls, url: str) -> "Repository":
        """Parses `hf://ORGANISATION/NAME[@REVISION]`; the prefix may lack."""
        name, _, revision = url.removeprefix(PREFIX).partition("@")
        return cls(name, revision or None)

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + (f"@{self.revision}" if self.revision else "")


def download(repository: Repository, **options: Any) -> Path:
    """Finds a repository's files in the local cache, or downloads them.

    The name of their folder is the commit, as everywhere in the Hub's cache. Pickles are downloaded
    only if there are no safetensors. `options` are those of huggingface_hub's `snapshot_download`.

    Raises:
        HubError: If the Hub refuses the download or cannot be reached.
    """
    folder = _snapshot(repository, _FILES, options)
    if not any(folder.glob("*.safetensors")):
        pinned = Repository(repository.name, folder.name)
        folder = _snapshot(pinned, _FILES + _PICKLES, options)
    return folder


def upload(
    folder: Path, repository: Repository, private: bool | None = None, **options: Any
) -> str:
    """Uploads the checkpoint in a folder, without a report; returns the URL of the commit.

    The commit deletes the files of an earlier checkpoint that this one does not have.

    Args:
        folder: Of the checkpoint; files in its subfolders are left out.
        repository: Created if it does not exist; its revision is the branch.
        private: Of a repository that does not exist yet; None for the default of its owner.
        options: Of `HfApi.upload_folder`, such as `token`.

    Raises:
        HubError: If the Hub refuses the upload or cannot be reached.
    """
    with _hub_errors(repository):
        api = _client().HfApi(token=options.pop("token", None))
        api.create_repo(repository.name, private=private, exist_ok=True)
        return str(
            api.upload_folder(
                repo_id=repository.name,
                folder_path=folder,
                allow_patterns=list(_FILES),
                ignore_patterns="*/*",
                delete_patterns=list(_OPTIONAL),
                revision=repository.revision,
                **options,
            )
        )


@contextmanager
def _hub_errors(name: object) -> Iterator[None]:
    hub = _client()
    try:
        yield
    except (OSError, ValueError) as error:
        raise HubError(f"{name}: {_reason(hub, error)}") from error


def _snapshot(repository: Repository, patterns: Sequence[str], options: Mapping[str, Any]) -> Path:
    with _hub_errors(repository):
        return Path(
            _client().snapshot_download(
                repository.name,
                revision=repository.revision,
                allow_patterns=list(patterns),
                **options,
            )
        )


def _client() -> ModuleType:
    """The module huggingface_hub. Raises HubError if it is not installed."""
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise HubError("expected huggingface_hub; pip install 'eulerlora[hub]'") from error
    return huggingface_hub


def _reason(hub: ModuleType, error: Exception) -> str:
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "access requires the consent of its owner; accept its terms and run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such repository, or it is private"
    if isinstance(error, errors.RevisionNotFoundError):
        return "no such revision"
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return "access is denied; run `hf auth login` with a token that has write access"
    return (
        "cannot be reached; expected a network, or a folder on this machine, which "
        "`hf download` writes on another one"
    )
