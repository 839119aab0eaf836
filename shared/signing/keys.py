"""Ed25519 keys <-> PEM files: PKCS 8 for the private half, SubjectPublicKeyInfo for the public one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from shared.errors import SettingsError

PrivateKey: TypeAlias = Ed25519PrivateKey
PublicKey: TypeAlias = Ed25519PublicKey
MOST_BYTES = 4096  # of a key's file; an Ed25519 key takes 119
OTHERS = 0o007  # permissions of everybody but the owner and the group


def new_key() -> PrivateKey:
    return Ed25519PrivateKey.generate()


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: PublicKey) -> str:
    """The sha256 of the key's 32 bytes: short enough to be compared by telephone."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def read_private(path: Path) -> PrivateKey:
    """SettingsError for a file that others than its user and group may use, or that holds no such key."""
    content = _content(path, "a private key", secret=True)
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path}: expected an Ed25519 private key as PEM, without a passphrase, got something else")
    return key


def read_public(path: Path) -> PublicKey:
    """SettingsError for a file that holds no such key."""
    content = _content(path, "a public key")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise SettingsError(f"{path}: expected an Ed25519 public key as PEM, got something else")
    return key


def _content(path: Path, what: str, *, secret: bool = False) -> bytes:
    try:
        mode = path.stat().st_mode & 0o777
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as error:
        raise SettingsError(f"{path}: expected a file with {what} ({error.strerror})") from None
    if secret and mode & OTHERS:
        raise SettingsError(f"{path}: expected a file for its owner alone (chmod 600), got permissions {mode:03o}")
    return content
