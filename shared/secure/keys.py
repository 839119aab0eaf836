"""Key agreement (X25519), derivation (HKDF-SHA256) and sealing (ChaCha20-Poly1305), bound to their purpose and round.

Keys are fresh for each round. A drop-out's mask key becomes known to the aggregator: with a key for the whole run, the
masks of all its other rounds would be known with it. Fresh keys cost two key pairs and three agreements a peer: 0.2 ms.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shared.errors import ProtocolError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
PROTOCOL = "lpsfed secure aggregation"


@dataclass(frozen=True)
class Context:
    """What every derived key and every sealed message is bound to. `transcript`: the digest of the round's roster, so
    that clients who were shown different rosters derive different keys and cannot open each other's messages."""

    version: int
    run: str
    round: int
    transcript: str

    def label(self, purpose: str, first: str, second: str) -> bytes:
        """Bytes that no other purpose, round or pair of names gives: each part after its length."""
        parts = (PROTOCOL, str(self.version), purpose, self.run, str(self.round), self.transcript, first, second)
        encoded = (part.encode() for part in parts)
        return b"".join(len(part).to_bytes(2) + part for part in encoded)


def new_private() -> bytes:
    """A fresh X25519 private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def new_seed() -> bytes:
    """32 bytes from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def public(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(seed: bytes) -> str:
    """Holds its owner to a random seed without telling it: sha256 in hexadecimal."""
    return hashlib.sha256(f"{PROTOCOL} seed".encode() + seed).hexdigest()


def agree(private: bytes, peer: bytes, label: bytes) -> bytes:
    """32 bytes that only the owners of both keys can derive. ProtocolError if the peer's key is one of the few points
    with which every agreement ends in zero."""
    try:
        agreed = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise ProtocolError("expected a public key of X25519, got a point that nobody can agree with") from None
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label).derive(agreed)


def pair_seed(private: bytes, peer: bytes, context: Context, own: str, other: str) -> bytes:
    """The seed of the mask that two clients share; either derives the same."""
    return agree(private, peer, context.label("mask", *sorted((own, other))))


def require_usable(peer: bytes) -> None:
    """ProtocolError unless one can agree on a key with this public key."""
    agree(new_private(), peer, b"")


def seal(key: bytes, content: bytes, label: bytes) -> bytes:
    """Encrypted and bound to the label: nonce, then ciphertext, then tag.

    The nonce is random: a client that crashes before it keeps its shares would else seal others under the same one.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, label)


def unseal(key: bytes, sealed: bytes, label: bytes) -> bytes:
    """The content, or ProtocolError if a bit of it, its key or its label differs."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label)
    except InvalidTag:
        raise ProtocolError("expected a sealed message as its sender made it, got another") from None
