"""Tags by which one member proves a message to one other, cheaper than by signatures.

A signature convinces everybody, a tag its receiver alone: its key follows from the identities of both. Here a tag
stands beside a signature that the aggregator has verified; who finds none, or a wrong one, verifies the signature. So
a tag saves work and decides nothing: neither a lying silo nor an aggregator gains by false ones.

The same key signs and agrees: Thormarker, "On using the same key pair for Ed25519 and an X25519 based KEM", 2021.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from shared.errors import ProtocolError
from shared.protocol.secure import keys
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.keys import PROTOCOL
from shared.protocol.signing.keys import PrivateKey, raw_hex

TAG_BYTES = 16


class PairKeys:
    """Keys that one client and each other member agree on, once for all rounds."""

    def __init__(self, identity: PrivateKey) -> None:
        self._own = raw_hex(identity.public_key())
        self._own_bytes = bytes.fromhex(self._own)
        self._secret = _secret_scalar(identity)
        self._keys: dict[str, bytes | None] = {}

    def agree(self, peers: Iterable[str]) -> None:
        """Agrees on keys with other identities at once, in less time than one by one."""
        new = [peer for peer in peers if peer not in self._keys]
        try:
            self._keys |= keys.agree(self._secret, {peer: (bytes.fromhex(peer), self._label(peer)) for peer in new})
        except ProtocolError:  # one of them is no key: each by itself
            for peer in new:
                self._key(peer)

    def make_tag(self, receiver: str, content: bytes) -> str | None:
        """Makes the tag of a content for another identity; None if that is no key."""
        key = self._key(receiver)
        return None if key is None else _compute_tag(key, self._own_bytes + bytes.fromhex(receiver), content)

    def is_tag_of(self, sender: str, content: bytes, tag: str | None) -> bool:
        """Tells whether a sender made this tag of a content for this client."""
        if tag is None or (key := self._key(sender)) is None:
            return False
        return hmac.compare_digest(_compute_tag(key, bytes.fromhex(sender) + self._own_bytes, content), tag)

    def _key(self, peer: str) -> bytes | None:
        """Returns the key of a pair; None if the other identity is no key."""
        if peer not in self._keys:
            try:
                self._keys |= keys.agree(self._secret, {peer: (bytes.fromhex(peer), self._label(peer))})
            except ProtocolError:
                self._keys[peer] = None
        return self._keys[peer]

    def _label(self, peer: str) -> bytes:
        first, second = sorted((self._own, peer))
        return f"{PROTOCOL}\npair of identities\n{first}\n{second}\n".encode()


def _secret_scalar(identity: PrivateKey) -> int:
    """Computes the secret scalar of an Ed25519 key (RFC 8032, 5.1.5)."""
    half = bytearray(hashlib.sha512(identity.private_bytes_raw()).digest()[:BYTES])
    half[0] &= 248
    half[31] = half[31] & 127 | 64
    return int.from_bytes(half, "little")


def _compute_tag(key: bytes, direction: bytes, content: bytes) -> str:
    """Computes a tag; direction: the identities of sender and receiver, 64 bytes."""
    return hmac.digest(key, direction + content, "sha256")[:TAG_BYTES].hex()
