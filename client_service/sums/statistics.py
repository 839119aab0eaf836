"""Computes a silo's part of the sums of a basis run (shared.sums.item_basis)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from client_service.data.digests import content_digest
from client_service.data.interactions import Shard
from client_service.sums.basis import START_SEED, CommonBasis, degree_exponents
from client_service.sums.subspace_iteration import RIDGE, ExploredSubspace, fix_signs, pack
from shared.errors import DataError
from shared.method.graph import degree_power, degrees
from shared.method.parameters import Float32
from shared.sums.item_basis import DEGREES, NOISE, PACKED, PAIRS, PRODUCTS, WEIGHTED
from shared.sums.sum import STEP, UInt32, encode_fixed

Float64 = NDArray[np.float64]
ROWS = 512  # items whose pairs are counted at a time


def catalogue_matrix(shard: Shard, items: int) -> sparse.csr_array:
    """Returns X_c: training pairs over the items of the catalogue, (M, N) 0/1 float64.

    Unlisted items are left out. Raises DataError for a shard without places in the catalogue.
    """
    if shard.places is None:
        raise DataError("expected the shard's items to have places in the common catalogue, they have none")
    listed = np.flatnonzero(shard.places >= 0)
    known = sparse.csr_array(shard.train[:, listed])
    columns = shard.places[listed][known.indices]
    found: sparse.csr_array = sparse.csr_array((known.data, columns, known.indptr), shape=(known.shape[0], items))
    found.sort_indices()
    return found


def restrict_to_training(basis: CommonBasis, shard: Shard) -> CommonBasis:
    """Returns the basis as if this silo had added its training pairs alone.

    So models are not judged on pairs that they know. From counts each silo subtracts its own held-out pairs; those of
    others stay, because nothing here is judged by them. Nothing is subtracted from directions: to such sums, and to
    noised ones, silos add their training pairs alone. A silo that joined after the sums were made adds its own pairs
    here, and nowhere else.
    """
    if not basis.included:
        return _add_own_part(basis, catalogue_matrix(shard, len(basis.degrees)))
    if basis.pairs is None or not basis.added_all_data or not (shard.valid.nnz or shard.test.nnz):
        return basis
    items = len(basis.degrees)
    train, whole = catalogue_matrix(shard, items), catalogue_matrix(shard.with_all_data, items)
    by_item = np.maximum(basis.degrees - (degrees(whole)[1] - degrees(train)[1]).astype(np.int64), 0)
    pairs = _subtract_counts(basis.pairs, sparse.csr_array(whole.T @ whole - train.T @ train))
    np.fill_diagonal(pairs, by_item)
    return replace(basis, degrees=by_item, pairs=pairs, added_all_data=False)


def _add_own_part(basis: CommonBasis, own: sparse.csr_array) -> CommonBasis:
    """Adds the pairs (M, N) of a silo whose part is not in the sums."""
    by_item = basis.degrees + degrees(own)[1].astype(np.int64)
    if basis.pairs is None:
        values, vectors = _add_to_directions(basis, by_item, own)
        return replace(basis, degrees=by_item, values=values, vectors=vectors, included=True)
    pairs = _subtract_counts(basis.pairs, -sparse.csr_array(own.T @ own))
    np.fill_diagonal(pairs, by_item)
    return replace(basis, degrees=by_item, pairs=pairs, included=True)


def _add_to_directions(
    basis: CommonBasis, by_item: NDArray[np.int64], own: sparse.csr_array
) -> tuple[Float64, Float32]:
    """Adds R_c^T R_c to W; returns values (r,) and vectors (N, r).

    W is in the degrees of all silos and this one.
    """
    assert basis.values is not None
    assert basis.vectors is not None
    of_users, of_items = degree_exponents(basis)
    changed = degree_power(basis.degrees.astype(np.float64), of_items) * degree_power(
        by_item.astype(np.float64), -of_items
    )
    root = (changed[:, None] * basis.vectors) * np.sqrt(np.maximum(basis.values, 0.0))
    weights = sparse.diags_array(degree_power(degrees(own)[0], -of_users))
    entered = sparse.csr_array(weights @ own @ sparse.diags_array(degree_power(by_item.astype(np.float64), -of_items)))
    turned = sparse.csr_array(entered.T)

    def multiply(columns: Float64) -> Float64:
        found: Float64 = root @ (root.T @ columns) + turned @ (entered @ columns)
        return found

    size, rank = len(by_item), len(basis.values)
    if rank >= size - 1:
        values, vectors = np.linalg.eigh(multiply(np.eye(size)))
    else:
        start = np.random.default_rng(START_SEED).standard_normal(size)
        operator = LinearOperator((size, size), matvec=multiply, matmat=multiply, dtype=np.float64)
        values, vectors = eigsh(operator, k=rank, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")[:rank]
    order = order[values[order] > RIDGE * values[order[0]]]
    return values[order], fix_signs(vectors[:, order]).astype(np.float32)


def _subtract_counts(pairs: Float32, own: sparse.csr_array) -> Float32:
    """Subtracts counts; results below the smallest shown count are hidden again."""
    found, changed = pairs.copy(), own.tocoo()
    np.fill_diagonal(found, 0.0)
    least = float(np.min(found, where=found > 0, initial=np.inf))
    rows, columns = changed.coords
    left = found[rows, columns] - changed.data.astype(np.float32)
    found[rows, columns] = np.where(left >= least, left, 0.0)
    return found


def measure_covered_share(basis: CommonBasis, shard: Shard) -> float:
    """Computes the share of training pairs whose items have information from other silos.

    Pairs: an item with a shown pair that more users have than this silo's own. Directions: an item that users of
    other silos have. After noise that is unknown, and all listed items count.
    """
    places = shard.places
    if places is None or not shard.train.nnz:
        return 1.0
    known = restrict_to_training(basis, shard)
    own = catalogue_matrix(shard, len(basis.degrees))
    if known.pairs is not None:
        beyond = _mark_foreign_items(known.pairs, sparse.csr_array(own.T @ own))
    elif known.exponent > 0.0:
        beyond = known.degrees > degrees(own)[1]
    else:
        beyond = np.ones(len(known.degrees), dtype=bool)
    told = (places >= 0) & beyond[places]
    return float(np.mean(told[shard.train.indices]))


def _mark_foreign_items(pairs: Float32, own: sparse.csr_array) -> NDArray[np.bool_]:
    """Marks the items (C,) with a shown pair beyond the silo's own pairs."""
    seen = pairs.sum(axis=1, dtype=np.float64) - np.diag(pairs)
    rows, columns = own.nonzero()
    counted = (rows != columns) & (pairs[rows, columns] > 0)
    explained = np.bincount(rows[counted], own.data[counted], len(pairs))
    found: NDArray[np.bool_] = seen > explained
    return found


def training_digest(shard: Shard) -> str:
    """Computes the sha256 of the training pairs.

    It is the same in every catalogue, and does not depend on the rest of the shard.
    """
    used = np.flatnonzero(degrees(shard.train)[1])
    ids = tuple(shard.shared_ids[item] for item in used)  # matched anew, it is another part of the sum
    return content_digest((ids,), (sparse.csr_array(shard.train[:, used]),))


def count_pairs(interactions: sparse.csr_array) -> dict[str, UInt32]:
    """Counts degrees (N,), and the upper triangle of X^T X by rows.

    The triangle is without its diagonal, (N (N - 1) / 2,).
    """
    return {DEGREES: count_degrees(interactions), PAIRS: _upper_triangle(interactions, interactions, first=1)}


def weigh_pairs(interactions: sparse.csr_array) -> dict[str, UInt32]:
    """Computes H = X^T D_u^-1 X in fixed point, upper triangle by rows.

    With the diagonal, (N (N + 1) / 2,), and a zero (1,) for the variance of noise that is added later. A user's
    weight is rounded down to a multiple of 2^-16, so that the user's part is one too and not larger than before.
    """
    by_user, _ = degrees(interactions)
    weights = np.floor(degree_power(by_user, -1.0) / STEP)
    weighted = sparse.csr_array(sparse.diags_array(weights) @ interactions)
    return {NOISE: np.zeros(1, np.uint32), WEIGHTED: _upper_triangle(interactions, weighted, first=0)}


def _upper_triangle(left: sparse.csr_array, right: sparse.csr_array, *, first: int) -> UInt32:
    """Computes the upper triangle of X^T Y by rows.

    first: 0 with the diagonal, 1 without it.
    """
    items = left.shape[1]
    turned, upper = sparse.csr_array(left.T), np.empty(items * (items + 1 - 2 * first) // 2, np.uint32)
    filled = 0
    for begin in range(0, items, ROWS):
        block = (turned[begin : begin + ROWS] @ right).toarray()
        above = block[np.arange(items) >= np.arange(begin, begin + len(block))[:, None] + first]
        upper[filled : filled + len(above)] = above
        filled += len(above)
    return upper


def count_degrees(interactions: sparse.csr_array) -> UInt32:
    """Counts the interactions of each item, (N,)."""
    return degrees(interactions)[1].astype(np.uint32)


def raw_products(interactions: sparse.csr_array, directions: Float64, exponent: float) -> Float64:
    """Computes A Q with A = X^T D_u^-2e X, (N, r), for the first round.

    No silo knows the degrees of all silos in that round.
    """
    by_user, _ = degrees(interactions)
    weights = degree_power(by_user, -2.0 * exponent)
    found: Float64 = interactions.T @ (weights[:, None] * (interactions @ directions))
    return found


def normalised_products(
    interactions: sparse.csr_array, directions: Float64, exponent: float, all_degrees: NDArray[np.int64]
) -> Float64:
    """Computes R^T R Q with R = D_u^-e X D_i^-e, (N, r).

    D_i are the degrees over all silos.
    """
    scale = degree_power(all_degrees.astype(np.float64), -exponent)[:, None]
    return scale * raw_products(interactions, scale * directions, exponent)


def encode_sums(interactions: sparse.csr_array, products: Float64, clients: int) -> dict[str, UInt32]:
    """Encodes the part of an iterated round, for a sum over at most `clients` silos."""
    return {DEGREES: count_degrees(interactions), PRODUCTS: encode_fixed(products, clients, PRODUCTS)}


def begin_sums(interactions: sparse.csr_array, start: Float64, exponent: float, clients: int) -> dict[str, UInt32]:
    """Encodes the part of the first round: A Omega, and beside it diag A.

    For sums that keep the products of all rounds.
    """
    by_user, _ = degrees(interactions)
    diagonal = interactions.T @ degree_power(by_user, -2.0 * exponent)
    numbers = np.column_stack([raw_products(interactions, start, exponent), diagonal])
    return {DEGREES: count_degrees(interactions), PACKED: encode_fixed(numbers, clients, PRODUCTS)}


def pack_sums(interactions: sparse.csr_array, known: ExploredSubspace) -> dict[str, UInt32]:
    """Encodes the part of each later round."""
    products = normalised_products(interactions, known.next_directions, known.exponent, known.degrees)
    return {DEGREES: count_degrees(interactions), PACKED: pack(products / known.steps)}
