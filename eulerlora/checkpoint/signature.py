"""Signatures of checkpoints in the format of OpenSSF Model Signing, without a network.

The signature, `model.sig` in the folder of a checkpoint, covers all other files of the folder: it
is invalid after one was changed, added or removed. `model_signing verify key` checks it as well.
The extra `signing` installs the library.
"""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eulerlora.checkpoint.weights import read_whole
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.output_files import atomic_write

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

    Raises:
        SettingsError: For another file, and without the extra `signing`.
    """
    _check_library()
    from model_signing import verifying  # noqa: PLC0415 - an extra

    config = _with_key(verifying.Config().use_elliptic_key_verifier, public_key=key)

    def verify(folder: Path) -> None:
        signature = folder / SIGNATURE_FILE
        if not signature.is_file():
            raise CheckpointError(signature, f"expected a signature with {key}, got none")
        _check_readable(folder, signature)
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


def _check_readable(folder: Path, signature: Path) -> None:
    """Refuses files before their content is read, which could take hours.

    The signature may be forged, which the library finds out before it reads another file.

    Raises:
        CheckpointError: For a file that the signature does not name, or that has holes: it can be
            of any size and takes no space of the disk.
    """
    try:
        envelope = json.loads(read_whole(signature))["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
        signed = {resource["name"] for resource in statement["resources"]}
        ignored = statement["serialization"].get("ignore_paths", ())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(signature, "expected a signature of a checkpoint") from error
    skipped = [folder / name for name in (SIGNATURE_FILE, *ignored)]
    for file in folder.rglob("*"):
        if not file.is_file() or any(file.is_relative_to(path) for path in skipped):
            continue
        name = file.relative_to(folder).as_posix()
        if name not in signed:
            raise CheckpointError(signature, f"expected the signed files only, got {name} too")
        if _has_holes(file):
            raise CheckpointError(signature, f"{name}: expected a file without holes")


def _has_holes(file: Path) -> bool:
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        return size > 0 and os.lseek(opened.fileno(), 0, os.SEEK_HOLE) < size


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
