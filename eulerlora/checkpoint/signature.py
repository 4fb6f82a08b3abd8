"""Signatures of checkpoints in the format of OpenSSF Model Signing, without a network.

The signature, `model.sig` in the folder of a checkpoint, covers all other files of the folder: it
is invalid after one was changed, added or removed. `model_signing verify key` checks it as well.
The extra `signing` installs the library.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.output_files import atomic_write, changed_folder

SIGNATURE_FILE = "model.sig"
Verify = Callable[[Path], None]
"""Raises CheckpointError unless the signature of the checkpoint in a folder is valid."""


def sign(folder: Path, key: Path) -> None:
    """Writes the signature of a checkpoint, in place of an earlier one.

    Args:
        folder: Of the checkpoint.
        key: PEM file of an unencrypted private key on the curve P-256, P-384 or P-521.

    Raises:
        SettingsError: For another key, and without the extra `signing`.
        CheckpointError: For a folder that does not exist or has links, pipes or devices.
        StorageError: For a full or failing disk.
    """
    _check_library()
    from model_signing import signing  # noqa: PLC0415 - an extra

    signer = _with_key(signing.Config().use_elliptic_key_signer, private_key=key)
    if not folder.is_dir():
        raise CheckpointError(folder, "there is no such folder")
    with changed_folder(folder):  # completes a change that was interrupted
        pass
    with TemporaryDirectory() as temporary:
        signature = Path(temporary) / SIGNATURE_FILE
        try:
            signer.set_hashing_config(_hashing()).sign(folder, signature)
        except ValueError as error:
            raise CheckpointError(folder, "expected regular files only") from error
        with atomic_write(folder / SIGNATURE_FILE) as partial:
            partial.write_bytes(signature.read_bytes())


def verifier(key: Path) -> Verify:
    """Makes the check of signatures by the private key of a public one, a PEM file, read at once.

    Raises SettingsError for another file, and without the extra `signing`.
    """
    _check_library()
    from model_signing import verifying  # noqa: PLC0415 - an extra

    config = _with_key(verifying.Config().use_elliptic_key_verifier, public_key=key)

    def verify(folder: Path) -> None:
        signature = folder / SIGNATURE_FILE
        if not signature.is_file():
            raise CheckpointError(signature, f"expected a signature with {key}, got none")
        # The files of a snapshot in the Hub's cache are links; others are refused by the reader.
        config.set_hashing_config(_hashing().set_allow_symlinks(True))
        try:
            config.verify(folder, signature)
        except Exception as error:  # a file of any content: many kinds, all of which refuse it
            raise CheckpointError(
                signature,
                f"expected a signature of all files of the folder with {key}; another key made it, "
                "or a file was changed, added or removed since",
            ) from error

    return verify


def _check_library() -> None:
    try:
        import model_signing  # noqa: F401, PLC0415
    except ImportError as error:
        raise SettingsError(
            "signatures require the module model_signing; run: pip install 'eulerlora[signing]'"
        ) from error


def _hashing() -> Any:
    from model_signing import hashing  # noqa: PLC0415 - an extra

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)


def _with_key(configure: Callable[..., Any], **key: Path) -> Any:
    ((kind, path),) = key.items()
    try:
        return configure(**key)
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the key ({error.strerror})") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{path}: expected a PEM file with an unencrypted {kind.replace('_', ' ')} on the "
            "curve P-256, P-384 or P-521"
        ) from error
