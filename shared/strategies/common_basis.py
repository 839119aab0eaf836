"""The common basis: statistics of the items, summed over the silos, from which each silo scores with all silos' data.

exact: degrees d and the pairs of G = sum_c X_c^T X_c, in integers. iterated: the products of a subspace iteration on
W = sum_c R_c^T R_c, R_c = D_u^-e X_c D_i^-e, in fixed point (Nicolas et al., arXiv 2501.16888, on users as clients).
exact with epsilon: H = sum_c X_c^T D_u^-1 X_c in fixed point, to which every client adds its part of the noise, and the
variance of that noise. A user adds x x^T / |x| to H, of Frobenius norm 1 however many items it has: nothing is clipped.
The aggregator adds integers and knows nothing else of it: each client orthonormalises the sum by itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters, State, blocks
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.strategies.local_client import LocalClient
from shared.strategies.strategy import Strategy

NAME = "common_basis"
DEGREES, PAIRS, PRODUCTS, PACKED = "basis.degrees", "basis.pairs", "basis.products", "basis.packed"
WEIGHTED, NOISE = "basis.weighted", "basis.noise"
UInt32 = NDArray[np.uint32]
Float64 = NDArray[np.float64]
FRACTION_BITS = 16
STEP = 2.0**-FRACTION_BITS
LIMIT = 2.0 ** (31 - FRACTION_BITS)  # a sum of this size or more has no place in 32 bits
MOST_EXACT = 8192  # items whose pairs are summed: 134 MB


def tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """What a basis run sums, by its settings. SettingsError without a catalogue, or with one too long for its pairs."""
    basis, items = method.basis, method.catalogue
    if items == 0:
        raise SettingsError("catalogue: expected the size of a shared item catalogue (basis.kind), got 0")
    degrees = Tensor(DEGREES, (items,), "zeros", dtype="U32")
    if basis.epsilon is not None and basis.kind != "exact":
        raise SettingsError(f"basis.epsilon: expected none with basis.kind = {basis.kind!r}, got {basis.epsilon:g}")
    if basis.kind == "iterated":
        if basis.rank > items:
            raise SettingsError(f"basis.rank: expected at most catalogue = {items}, got {basis.rank}")
        return (degrees, _products(basis, items))
    if items > MOST_EXACT:
        raise SettingsError(
            f"basis.kind: expected 'iterated' for more than {MOST_EXACT} items, got 'exact' with {items}"
        )
    if basis.epsilon is not None:
        weighted = Tensor(WEIGHTED, (items * (items + 1) // 2,), "zeros", dtype="U32")
        return (Tensor(NOISE, (1,), "zeros", dtype="U32"), weighted)
    return (degrees, Tensor(PAIRS, (items * (items - 1) // 2,), "zeros", dtype="U32"))


def _products(basis: BasisSettings, items: int) -> Tensor:
    """What an iterated round sends beside the degrees."""
    if basis.words is None:
        return Tensor(PRODUCTS, (items, basis.rank), "zeros", dtype="U32")
    if not basis.rank <= basis.directions <= items:
        words = f"expected from basis.rank = {basis.rank} to catalogue = {items} directions in all rounds"
        raise SettingsError(f"basis.words: {words}, got {basis.directions} with {basis.words}")
    return Tensor(PACKED, (items, basis.words), "zeros", dtype="U32")


def send_statistics(client: LocalClient, received: Parameters) -> Parameters:
    """A client's half of a round: the sum of the round before -> its own part of the next one."""
    client.load(received)
    return Parameters(client.arrays())


def hide_rare_pairs(least: int, centre: State) -> State:
    """The sums with 0 in place of each pair that fewer than `least` users have."""
    if PAIRS not in centre.arrays:
        return centre
    pairs = np.array(centre.arrays[PAIRS])
    for begin, end in blocks(pairs.size):
        part = pairs[begin:end]
        part[part < least] = 0
    return replace(centre, arrays={**centre.arrays, PAIRS: pairs})


def common_basis(method: MethodSettings) -> Strategy:
    """What sums the statistics. It sends no model and no scalar. A basis run is held with it; nobody chooses it."""
    least = method.basis.least_pairs
    return Strategy(
        NAME,
        shared=lambda name: name.startswith("basis."),
        own_tensors=tensors,
        fit=send_statistics,
        step=lambda _, centre: hide_rare_pairs(least, centre),
    )


def declare_basis(method: MethodSettings) -> Declaration | None:
    """What a basis run may send with these settings; None where there is no common basis."""
    return None if method.basis.kind == "off" else common_basis(method).declaration(method)


def encode_products(values: Float64, clients: int) -> UInt32:
    """Nearest multiples of 2^-16, modulo 2^32. Error of each: at most 2^-17.

    ProtocolError, without the values, where `clients` of that size could overflow a sum, or where one is not finite.
    """
    bound = LIMIT / max(1, clients)
    if outside := int(np.count_nonzero(~(np.abs(values) < bound))):
        raise ProtocolError(f"{PRODUCTS}: expected values below {bound:g} in size, got {outside} others")
    return np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).astype(np.uint32)


def decode_products(sums: UInt32) -> Float64:
    """The real numbers of a sum."""
    return np.asarray(sums).view(np.int32).astype(np.float64) * STEP
