"""Signatures cover every file of a checkpoint, and only the right key makes them."""

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from model_signing import signing, verifying

from eulerlora.checkpoint.signature import sign, verifier
from eulerlora_contract.errors import CheckpointError, SettingsError
from tests.checkpoint_files import ADAPTERS_FILE
from tests.program import refusal, succeed
from tests.signing_keys import KeyFiles, write_keys

SIGNATURE_FILE = "model.sig"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return write_keys(tmp_path)


@pytest.fixture
def signed(checkpoint_copy: Path, keys: KeyFiles) -> Path:
    """A signed checkpoint; a test that changes it uses no other."""
    succeed("sign", checkpoint_copy, "--key", keys.private)
    verifier(keys.public)(checkpoint_copy)
    return checkpoint_copy


def test_the_library_accepts_the_signature(signed: Path, keys: KeyFiles) -> None:
    config = verifying.Config().use_elliptic_key_verifier(public_key=keys.public)
    config.verify(signed, signed / SIGNATURE_FILE)


def test_a_signature_of_the_library_is_accepted(checkpoint_copy: Path, tmp_path: Path) -> None:
    keys = write_keys(tmp_path, key=ec.generate_private_key(ec.SECP384R1()))
    config = signing.Config().use_elliptic_key_signer(private_key=keys.private)
    config.sign(checkpoint_copy, checkpoint_copy / SIGNATURE_FILE)
    verifier(keys.public)(checkpoint_copy)


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / ADAPTERS_FILE).read_bytes())
    content[-1] ^= 1
    (folder / ADAPTERS_FILE).write_bytes(content)


def change_the_name(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"tiny"', '"tinx"'))


def add(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")

    return change


def sign_with_another_key(folder: Path) -> None:
    sign(folder, write_keys(folder.parent, "other").private)


def sign_other_files(folder: Path) -> None:
    """Takes the valid signature of another checkpoint with the same key."""
    other = Path(shutil.copytree(folder, folder.with_name("other")))
    flip_a_byte(other)
    sign(other, folder.parent / "signing.key")
    shutil.copy(other / SIGNATURE_FILE, folder)


def edit_the_statement(folder: Path) -> None:
    """Changes a file and its digest in the signed statement."""
    bundle = json.loads((folder / SIGNATURE_FILE).read_text())
    flip_a_byte(folder)
    sign_with_another_key(folder)
    other = json.loads((folder / SIGNATURE_FILE).read_text())
    bundle["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"]
    (folder / SIGNATURE_FILE).write_text(json.dumps(bundle))


def drop_the_signatures(folder: Path) -> None:
    bundle = json.loads((folder / SIGNATURE_FILE).read_text())
    bundle["dsseEnvelope"]["signatures"] = []
    (folder / SIGNATURE_FILE).write_text(json.dumps(bundle))


def change_the_type(folder: Path) -> None:
    """Another payload type has another signature."""
    bundle = json.loads((folder / SIGNATURE_FILE).read_text())
    bundle["dsseEnvelope"]["payloadType"] = "text/plain"
    (folder / SIGNATURE_FILE).write_text(json.dumps(bundle))


def content(text: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / SIGNATURE_FILE).write_bytes(text) and None


def extend(name: str) -> Callable[[Path], None]:
    """Makes a file so long that reading it takes an hour; it takes no space of the disk."""

    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.truncate(2**43)

    return change


ATTACKS: dict[str, Callable[[Path], object]] = {
    "unsigned": lambda folder: (folder / SIGNATURE_FILE).unlink(),
    "changed tensor": flip_a_byte,
    "changed config": change_the_name,
    "added file": add("more.json"),
    "added hidden file": add(".git/config"),
    "added to a subfolder": add("report/metrics.json"),
    "added file of 8 TB": extend("more.safetensors"),
    "extended weights": extend(ADAPTERS_FILE),
    "extended signature": extend(SIGNATURE_FILE),
    "removed file": lambda folder: (folder / "README.md").unlink(),
    "renamed file": lambda folder: (folder / "README.md").rename(folder / "CARD.md"),
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "another key": sign_with_another_key,
    "signature of other files": sign_other_files,
    "edited statement": edit_the_statement,
    "no signatures": drop_the_signatures,
    "another payload type": change_the_type,
    "empty": content(b""),
    "not an object": content(b"[]"),
    "not UTF-8": content(b"\xff"),
    "deep": content(b"[" * 100_000),
    "empty object": content(base64.b64decode("e30=")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_anything_but_the_signed_files_is_refused(
    attack: str, signed: Path, keys: KeyFiles
) -> None:
    ATTACKS[attack](signed)
    with pytest.raises(CheckpointError) as caught:
        verifier(keys.public)(signed)
    assert caught.value.path == signed / SIGNATURE_FILE


@pytest.mark.parametrize("change", [flip_a_byte, add("report/metrics.json")])
def test_a_changed_checkpoint_is_accepted_when_signed_again(
    change: Callable[[Path], None], signed: Path, keys: KeyFiles
) -> None:
    change(signed)
    sign(signed, keys.private)
    verifier(keys.public)(signed)


def test_the_files_of_a_snapshot_of_the_hub_are_links(
    signed: Path, keys: KeyFiles, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in signed.iterdir():
        (snapshot / file.name).symlink_to(file)
    verifier(keys.public)(snapshot)
    flip_a_byte(signed)
    with pytest.raises(CheckpointError):
        verifier(keys.public)(snapshot)


def test_a_checkpoint_with_a_link_is_not_signed(checkpoint_copy: Path, keys: KeyFiles) -> None:
    (checkpoint_copy / "link").symlink_to("README.md")
    with pytest.raises(CheckpointError):
        sign(checkpoint_copy, keys.private)
    assert not (checkpoint_copy / SIGNATURE_FILE).exists()


KEYS: dict[str, Callable[[Path], object]] = {
    "missing": lambda _: None,
    "no PEM file": lambda folder: (folder / "bad.key").write_text("secret"),
    "RSA": lambda folder: write_keys(folder, "bad", rsa.generate_private_key(65537, 2048)),
    "another curve": lambda folder: write_keys(
        folder, "bad", ec.generate_private_key(ec.SECP256K1())
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_other_keys_are_refused(kind: str, checkpoint_copy: Path, tmp_path: Path) -> None:
    KEYS[kind](tmp_path)
    bad = tmp_path / "bad.key"
    if not (tmp_path / "bad.pub").exists():
        (tmp_path / "bad.pub").write_bytes(bad.read_bytes() if bad.exists() else b"")
    assert str(bad) in refusal("sign", checkpoint_copy, "--key", bad)
    with pytest.raises(SettingsError):
        verifier(tmp_path / "bad.pub")


def test_an_encrypted_key_is_refused(checkpoint_copy: Path, tmp_path: Path) -> None:
    keys = write_keys(tmp_path, password=b"password")
    assert str(keys.private) in refusal("sign", checkpoint_copy, "--key", keys.private)


def test_a_private_key_does_not_verify(keys: KeyFiles) -> None:
    with pytest.raises(SettingsError):
        verifier(keys.private)
