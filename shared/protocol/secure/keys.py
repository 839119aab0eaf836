"""Key agreement, derivation (HKDF-SHA256) and sealing (ChaCha20-Poly1305) for one round.

Keys are fresh for each round. A drop-out's mask key becomes known to the aggregator: with a key for the whole run,
the masks of all its other rounds would be known with it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shared.errors import ProtocolError
from shared.protocol.secure import group

NONCE_BYTES = 12
TAG_BYTES = 16
NO_SALT, FIRST_BLOCK = bytes(32), b"\x01"
PROTOCOL = "lpsfed secure aggregation"


@dataclass(frozen=True)
class Context:
    """Round to which derived keys and sealed messages are bound.

    transcript: digest of the roster, so that clients with different rosters or terms derive different keys.
    """

    version: int
    run: str
    round: int
    transcript: str
    _starts: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)
    _parts: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def label(self, purpose: str, first: str, second: str) -> bytes:
        """Returns bytes that are unique to a purpose, a round and a pair of names.

        Each part follows its length.
        """
        if (start := self._starts.get(purpose)) is None:
            parts = (PROTOCOL, str(self.version), purpose, self.run, str(self.round), self.transcript)
            start = self._starts[purpose] = b"".join(map(_with_length, parts))
        return start + self._part(first) + self._part(second)

    def _part(self, name: str) -> bytes:
        """Returns a name's part of a label.

        It is made once: each name is in hundreds of labels of a round.
        """
        if (part := self._parts.get(name)) is None:
            part = self._parts[name] = _with_length(name)
        return part


def _with_length(part: str) -> bytes:
    encoded = part.encode()
    return len(encoded).to_bytes(2) + encoded


def derive(secret: bytes, label: bytes) -> bytes:
    """Derives 32 bytes for one purpose from a secret.

    HKDF without a salt (RFC 5869), whose first block is as long: two HMACs, in less time than by the library.
    """
    return hmac.digest(hmac.digest(NO_SALT, secret, "sha256"), label + FIRST_BLOCK, "sha256")


def agree(private: int, peers: Mapping[str, tuple[bytes, bytes]]) -> dict[str, bytes]:
    """Derives 32 bytes with each peer that only the owners of both keys can derive.

    peers: key and label of each. Raises ProtocolError for a peer's key that is no point.
    """
    agreed = group.agree(private, [key for key, _ in peers.values()])
    return {name: derive(point, label) for point, (name, (_, label)) in zip(agreed, peers.items(), strict=True)}


def agree_on_masks(private: int, peers: Mapping[str, bytes], context: Context, own: str) -> dict[str, bytes]:
    """Derives the seeds of the masks that a client shares with peers, alike for both."""
    labels = {name: context.label("mask", *sorted((own, name))) for name in peers}
    return agree(private, {name: (key, labels[name]) for name, key in peers.items()})


def derive_self_mask(seed: int, context: Context, own: str) -> bytes:
    """Derives the seed of a client's own mask, from the scalar that its shares restore."""
    return derive(seed.to_bytes(group.BYTES), context.label("self mask", own, own))


def seal(key: bytes, content: bytes, label: bytes) -> bytes:
    """Encrypts content bound to a label, as nonce, ciphertext and tag.

    The nonce is random: a client that crashes before it stores its shares would else seal others under the same one.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, label)


def unseal(key: bytes, sealed: bytes, label: bytes) -> bytes:
    """Decrypts sealed content; raises ProtocolError if content, key or label differ."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label)
    except InvalidTag:
        raise ProtocolError("expected a sealed message as its sender made it, got another") from None
