"""Ed25519 keys in PEM files: PKCS 8 private, SubjectPublicKeyInfo public."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl import bindings
from nacl.exceptions import BadSignatureError

from shared.errors import SettingsError

PrivateKey: TypeAlias = Ed25519PrivateKey
PublicKey: TypeAlias = Ed25519PublicKey
MOST_BYTES = 4096  # of a key's file; an Ed25519 key takes 119
OTHERS = 0o007  # permissions of everybody but the owner and the group


def new_key() -> PrivateKey:
    return Ed25519PrivateKey.generate()


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_key(content: bytes) -> PublicKey:
    """Returns the key of 32 bytes; raises SettingsError for another number."""
    try:
        return Ed25519PublicKey.from_public_bytes(content)
    except ValueError:
        raise SettingsError(f"expected the 32 bytes of an Ed25519 public key, got {len(content)}") from None


def is_made_by(key: PublicKey, signature: bytes, content: bytes) -> bool:
    """Tells whether the owner of a key has made this signature of this content.

    By libsodium, in half the time of OpenSSL. It also refuses keys and points of small order, under which anybody could
    sign.
    """
    try:
        bindings.crypto_sign_open(signature + content, key.public_bytes_raw())
    except BadSignatureError:
        return False
    return True


def raw_hex(key: PublicKey) -> str:
    """Returns the key's 32 bytes in hexadecimal."""
    return key.public_bytes_raw().hex()


def fingerprint(key: PublicKey) -> str:
    """Computes the sha256 of the key's 32 bytes, for comparison by telephone."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def derive_secret(key: PrivateKey, label: bytes) -> bytes:
    """Derives 32 bytes from a private key, different for each label.

    Only the key's holder can derive them. They tell nothing of the key.
    """
    return HKDF(hashes.SHA256(), 32, salt=None, info=label).derive(key.private_bytes_raw())


def read_private(path: Path) -> PrivateKey:
    """Reads a private key.

    Raises SettingsError for a file that others than its user and group may use, or that holds no such key.
    """
    content = _content(path, "a private key", secret=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path}: expected an Ed25519 private key as PEM, without a passphrase, got something else")
    return key


def read_public(path: Path) -> PublicKey:
    """Reads a public key; raises SettingsError for a file without one."""
    content = _content(path, "a public key")
    try:
        key = serialization.load_pem_public_key(content)
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
