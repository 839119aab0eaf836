"""Real numbers of a sum in several words of 32 bits, added modulo 2^32.

The low words have `bits` bits each, so that 2^(32 - bits) silos have room in a sum; the last word has the sign.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError
from shared.sums.sum import Float64, UInt32


class WideNumbers(NamedTuple):
    """Number format of a tensor: multiples of 2^-fraction in several words.

    words: how many, the low ones of `bits` bits each.
    """

    words: int
    bits: int
    fraction: int

    @property
    def most_silos(self) -> int:
        """Most silos that a sum has room for."""
        return 1 << 32 - self.bits

    @property
    def limit(self) -> float:
        """Least size that a sum has no room for."""
        return float(2.0 ** (31 + self.bits * (self.words - 1) - self.fraction))

    def encode(self, values: Float64, clients: int, name: str) -> UInt32:
        """Encodes values (n,) as the nearest multiples, in words (words, n), lowest first.

        ProtocolError, without the values, where `clients` of that size could overflow a sum, or where one is not
        finite. name: of the tensor, for the error.
        """
        if clients > self.most_silos:
            raise ProtocolError(f"{name}: expected at most {self.most_silos:,} silos in a sum, got {clients:,}")
        bound = self.limit / max(1, clients)
        if outside := int(np.count_nonzero(~(np.abs(values) < bound))):
            raise ProtocolError(f"{name}: expected values below {bound:g} in size, got {outside} others")
        whole = np.rint(values * 2.0**self.fraction).astype(np.int64)
        low = [(whole >> (self.bits * place)) & ((1 << self.bits) - 1) for place in range(self.words - 1)]
        return np.stack([*low, whole >> (self.bits * (self.words - 1))]).astype(np.uint32)

    def decode(self, words: NDArray[np.uint32]) -> Float64:
        """Decodes the words of a tensor's sum to real numbers, (n,)."""
        *low, high = np.asarray(words)
        whole = np.ascontiguousarray(high).view(np.int32).astype(np.int64) << (self.bits * (self.words - 1))
        for place, one in enumerate(low):
            whole += one.astype(np.int64) << (self.bits * place)
        return whole.astype(np.float64) * 2.0**-self.fraction

    def has_wrapped(self, words: NDArray[np.uint32], silos: int) -> bool:
        """Tells whether a low word is larger than this number of silos can make it."""
        return bool((np.asarray(words)[:-1] > silos * ((1 << self.bits) - 1)).any())
