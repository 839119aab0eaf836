"""Spectral bases of node features: powers of the propagation, and UniFilter's bases.

UniFilter. Huang, Wang, Li, Xiao. ICML 2024. Each column of features has bases of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.node_graphs import NodeShard
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32

LEAST_COSINE = 1e-6  # below: theta is a right angle, and u_k is v_k
LEAST_NORM = 1e-8  # a v_k shorter than this is rounding: the column's Krylov space has ended
COLUMNS_AT_ONCE = 128  # that are worked on at a time, so that only the bases themselves need memory
UNKNOWN_HOMOPHILY = 0.75  # of a graph without an edge between two nodes whose labels are known


@dataclass(frozen=True)
class SpectralBases:
    """Bases 0 to K of each column.

    first: basis 0, the features as they are, (n, F), sparse. others: bases 1 to K, (K, n, F).
    coefficients (K + 1, K + 1, F): basis k of a column x is the sum over j of coefficients[k, j] P^j x.
    """

    first: sparse.csr_array
    others: Float32
    coefficients: Float64


def propagation_matrix(adjacency: sparse.csr_array) -> sparse.csr_array:
    """Computes P = D^-1/2 A D^-1/2 without self loops.

    Rows of isolated nodes are zero.
    """
    weights = adjacency.astype(np.float64)
    if weights.diagonal().any():
        weights = sparse.csr_array(weights - sparse.diags_array(weights.diagonal()))
    degrees = np.asarray(weights.sum(axis=1)).ravel()
    scaling = sparse.diags_array(inverse_roots(np.asarray(degrees, dtype=np.float64)))
    return sparse.csr_array(scaling @ weights @ scaling)


def propagate_nodes(
    shard: NodeShard, product: Float64, hops: int, projection: Float64 | None = None
) -> Iterator[Float64]:
    """Yields P^k X of a shard's nodes, dense, for k = 1 to hops.

    product: X, or X times the projection. Where border sums are known, P is that of the whole graph as far as they
    reach: a neighbour counts with its whole degree, and a node divides by the degree of the neighbours that are in its
    sum.
    """
    borders, foreign = shard.borders, shard.foreign
    if borders is None or foreign is None:
        propagation = propagation_matrix(shard.adjacency)
        for _ in range(hops):
            product = propagation @ product
            yield product
        return
    weights, own = shard.adjacency.astype(np.float64), shard.degrees.astype(np.float64)
    beyond = foreign.degrees.astype(np.float64)
    giving = inverse_roots(own + beyond)[:, None]
    summed = inverse_roots(own + beyond * borders.counts / np.maximum(foreign.counts, 1))[:, None]
    alone = inverse_roots(own)[:, None]
    for hop in range(hops):
        reached = weights @ (giving * product)
        if hop < len(borders.sums):
            more = borders.sums[hop].astype(np.float64)
            product = summed * (reached + (more if projection is None else more @ projection))
        else:
            product = alone * reached
        yield product


def inverse_roots(degrees: Float64) -> Float64:
    """Computes d^-1/2; 0 if d is 0."""
    found = np.zeros_like(degrees)
    found[degrees > 0] = degrees[degrees > 0] ** -0.5
    return found


def propagate_features(propagation: sparse.csr_array, features: sparse.csr_array, hops: int) -> Iterator[Float64]:
    """Yields P^k X, dense, for k = 1 to hops."""
    product: Float64 = features.toarray().astype(np.float64)
    for _ in range(hops):
        product = propagation @ product
        yield product


def mixed_bases(
    propagation: sparse.csr_array, features: sparse.csr_array, order: int, homophily: float, tau: float
) -> SpectralBases:
    """Computes tau P^k x + (1 - tau) u_k for k from 1 to K.

    For k = 0 the basis is x.

    homophily: h, from 0 to 1; theta = pi / 2 (1 - h). tau 1: powers of P alone; tau 0: bases at the angle theta alone.
    """
    if not (order >= 1 and 0 <= homophily <= 1 and 0 <= tau <= 1):
        raise SettingsError(
            f"bases of nodes: expected an order of at least 1, a homophily and a tau from 0 to 1; got order {order}, "
            f"homophily {homophily}, tau {tau}: set the settings of nodes to such values"
        )
    rows, columns = features.shape
    others = np.zeros((order, rows, columns), dtype=np.float32)
    coefficients = np.zeros((order + 1, order + 1, columns))
    by_column = sparse.csc_array(features, dtype=np.float64)
    cosine = np.cos(np.pi / 2 * (1 - homophily))
    for begin in range(0, columns, COLUMNS_AT_ONCE):
        part = slice(begin, min(begin + COLUMNS_AT_ONCE, columns))
        values = by_column[:, part].toarray()
        coefficients[0, 0, part] = 1.0
        if tau > 0:
            power = values
            for k in range(1, order + 1):
                power = propagation @ power
                others[k - 1, :, part] += tau * power
                coefficients[k, k, part] += tau
        if tau < 1:
            for k, (basis, combined) in enumerate(_heterophily_bases(propagation, values, order, cosine), start=1):
                others[k - 1, :, part] += (1 - tau) * basis
                coefficients[k, :, part] += (1 - tau) * combined
    return SpectralBases(sparse.csr_array(features), others, coefficients)


def _heterophily_bases(
    propagation: sparse.csr_array, values: Float64, order: int, cosine: float
) -> Iterator[tuple[Float64, Float64]]:
    """Yields UniFilter's heterophily bases u_k and their coefficients.

    u_k: (n, F), for k from 1 to K. Coefficients of P^j x: (K + 1, F).
    """
    # Paper: T_k of the mixed basis of the order before; here: a_k, because only with it all pairs meet at theta.
    lengths = np.linalg.norm(values, axis=0)
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    latest, latest_made = values * inverse, np.zeros((order + 1, values.shape[1]))
    latest_made[0] = inverse
    before, before_made = np.zeros_like(latest), np.zeros_like(latest_made)
    total, total_made = latest.copy(), latest_made.copy()
    for k in range(1, order + 1):
        found = propagation @ latest
        made = np.concatenate([np.zeros_like(latest_made[:1]), latest_made[:-1]])
        for one, its in ((latest, latest_made), (before, before_made)):
            share = np.einsum("nf,nf->f", found, one)
            found -= share * one
            made -= share * its
        length = np.linalg.norm(found, axis=0)
        scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > LEAST_NORM)
        before, before_made = latest, latest_made
        latest, latest_made = found * scale, made * scale
        if cosine < LEAST_COSINE:
            # an ended column has no further direction at a right angle: its u_k is zero, as its v_k
            yield latest, latest_made
            continue
        mean = (1 + (k - 1) * cosine) / k  # a_k
        turned = np.sqrt(max((mean / cosine) ** 2 - mean, 0.0))  # T_k
        basis, basis_made = total / k + turned * latest, total_made / k + turned * latest_made
        length = np.linalg.norm(basis, axis=0)
        scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
        basis, basis_made = basis * scale, basis_made * scale
        total, total_made = total + basis, total_made + basis_made
        yield basis, basis_made
