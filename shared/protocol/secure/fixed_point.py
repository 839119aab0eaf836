"""Fixed-point numbers modulo 2^64, in which masks add up and cancel exactly.

A number is rounded to the nearest multiple of 2^-40, ties to even, and its numerator is kept in two's complement.

Why these figures. At most 1,024 = 2^10 clients add numerators of at most 2^12 * 2^40 = 2^52, so a sum is at most
2^62: one bit short of the sign bit at 2^63, hence no sum can wrap. Numerators up to 2^52 are exact in float64. A
float32 of at least 2^-17 in size is itself a multiple of 2^-40, so almost every weight is encoded without any error.
In 32 bits, 10 bits for the clients and 3 for a bound of 8 would leave a step of 2^-18, coarser than float32
everywhere within that bound; the doubled traffic (232 kB instead of 116 kB for both MLPs) is the cheaper price.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError

Ring = NDArray[np.uint64]
Float64 = NDArray[np.float64]
FRACTION_BITS = 40
STEP = 2.0**-FRACTION_BITS
LIMIT = 4096.0  # largest size of a value
MOST_CLIENTS = 1024


def encode(values: NDArray[np.floating[Any]], name: str) -> Ring:
    """Encodes values as numerators modulo 2^64, of the same shape.

    Error of each value: at most STEP / 2, none for a multiple of STEP. Raises ProtocolError, without the values,
    where one is beyond LIMIT, infinite or NaN: clipping would falsify the mean.
    """
    exact = np.asarray(values, dtype=np.float64)
    if outside := int(np.count_nonzero(~(np.abs(exact) <= LIMIT))):  # so written, NaN counts as outside too
        raise ProtocolError(f"expected values from -{LIMIT:g} to {LIMIT:g} in {name!r}, got {outside} outside")
    return np.asarray(np.rint(np.ldexp(exact, FRACTION_BITS)).astype(np.int64).view(np.uint64))


def mean(total: Ring, count: int) -> Float64:
    """Computes the mean of `count` encoded arrays from their sum modulo 2^64.

    It is at most `error_bound` away from the true one.
    """
    if not 1 <= count <= MOST_CLIENTS:
        raise ProtocolError(f"expected a sum over 1 to {MOST_CLIENTS} clients, got {count}")
    return np.asarray(total.view(np.int64).astype(np.float64) / (count * 2.0**FRACTION_BITS))


def error_bound(mean_size: float) -> float:
    """Returns the largest error of a mean of this size.

    The rounding of the inputs, and two roundings of float64.
    """
    return STEP / 2 + mean_size * 2.0**-52
