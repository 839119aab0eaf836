"""Hash tree, whose signed root is evidence for each leaf.

With a leaf come the hashes beside its way to the root.

Paper: Merkle, "A Digital Signature Based on a Conventional Encryption Function", CRYPTO 1987; here: the smaller of two
hashes comes first, because each leaf names its place itself, so that a path needs no directions. A hash without another
beside it goes up a level as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HASH_BYTES = 32
INNER = b"\x01"  # before two hashes; what a leaf is the hash of begins otherwise


class HashTree:
    """Tree over one leaf or more, each a sha256."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(below := self._levels[-1]) > 1:
            self._levels.append([_join(*below[place : place + 2]) for place in range(0, len(below), 2)])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def find_path(self, place: int) -> bytes:
        """Returns the hashes beside the way from a leaf to the root."""
        beside = []
        for level in self._levels[:-1]:
            beside += level[place ^ 1 : (place ^ 1) + 1]
            place //= 2
        return b"".join(beside)


def climb_path(leaf: bytes, path: bytes) -> bytes:
    """Computes the root to which a path leads from a leaf."""
    for begin in range(0, len(path), HASH_BYTES):
        leaf = _join(leaf, path[begin : begin + HASH_BYTES])
    return leaf


def _join(first: bytes, second: bytes = b"") -> bytes:
    return hashlib.sha256(INNER + min(first, second) + max(first, second)).digest() if second else first
