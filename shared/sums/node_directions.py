"""Directions of nodes' features: products of the features of all silos' nodes with random directions.

Features wider than `nodes.directions` are projected before they are propagated. A silo sends Z' Z Omega, Z the mean of
P^k X over k = 0 to `nodes.hops`, X the features of its nodes, (n, q), each row of length 1, and Omega (q, r) normal
numbers that all draw alike. An orthonormal basis of the sum is the projection: the directions in which the smoothed
features of all nodes vary most (Halko, Martinsson, Tropp 2011).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Part
from shared.method.node_settings import NodeSettings
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Float64, Shapes, Sum
from shared.sums.wide_numbers import WideNumbers

DIRECTIONS: Part = "directions"
"""The part of a run that sums the directions of nodes' features."""
PRODUCTS = "nodes.directions"
FORM = WideNumbers(words=1, bits=0, fraction=12)
SEED = 36  # seed of Omega, fixed: sums over the same data with other directions would reveal more
ROUNDING = 0.01  # tolerated rounding, as a part of the largest eigenvalue
LEAST_LENGTH = 1e-10  # length of a direction, as a part of the longest one's, below which it is rounding alone


def require_sizes(nodes: NodeSettings) -> NodeSettings:
    """Returns the settings of nodes with the sizes that all silos share. SettingsError without them."""
    if nodes.features == 0 or nodes.classes < 2:
        got = f"{nodes.features} and {nodes.classes}"
        words = "expected how many features and classes, two or more, all silos of nodes share"
        raise SettingsError(f"nodes.features, nodes.classes: {words}, got {got}: set both")
    return nodes


def direction_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensor of products, (1, q r).

    Raises SettingsError for features that need no projection.
    """
    nodes = require_sizes(method.nodes)
    if not nodes.projected:
        words = f"expected features wider than nodes.directions = {nodes.directions} for a sum of their directions"
        raise SettingsError(f"nodes.features: {words}, got {nodes.features}: leave this sum out")
    return (Tensor(PRODUCTS, (FORM.words, nodes.features * nodes.projected), "zeros", dtype="U32"),)


def direction_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns no sizes, as all follow from the settings of nodes."""
    del basis, shapes
    return {}


def draw_directions(nodes: NodeSettings) -> Float64:
    """Draws Omega, (q, r)."""
    return np.random.default_rng([nodes.features, nodes.projected, SEED]).standard_normal(
        (nodes.features, nodes.projected)
    )


def find_projection(products: NDArray[np.uint32], nodes: NodeSettings) -> Float64:
    """Computes the orthonormal basis of summed products, (q, r), by Householder's QR.

    Its columns follow from the sum alone but for rounding, in the same order on any machine: no eigenvalues are sorted.
    Columns of 0 stand for directions that no node has. ProtocolError for a sum that no data can have.
    """
    summed = FORM.decode(products).reshape(nodes.features, nodes.projected)
    _require_possible(draw_directions(nodes).T @ summed)
    found, lengths = np.linalg.qr(summed)
    size = np.abs(np.diagonal(lengths))
    projection: Float64 = found * np.where(np.diagonal(lengths) < 0, -1.0, 1.0)
    projection[:, size <= LEAST_LENGTH * size.max()] = 0.0
    return projection


def _require_possible(core: Float64) -> None:
    """Checks that Omega' Z' Z Omega, (r, r), is symmetric without negative eigenvalues.

    Rounding is allowed.
    """
    values, unlike = np.linalg.eigvalsh((core + core.T) / 2.0), np.abs(core - core.T).max()
    if not values[-1] > 0.0 or values[0] < -ROUNDING * values[-1] or unlike > ROUNDING * values[-1]:
        words = "expected a sum of the directions of nodes' features that data can have, got an impossible one"
        raise ProtocolError(
            f"{words}: no silo has features, or a silo or the aggregator gave false numbers; sum anew"
            " (lpsfed run --renew-basis), or train without it"
        )


def describe_directions(basis: BasisSettings) -> str:
    """Describes what all silos learn by directions of features."""
    return (
        "which features go together in all silos' nodes, as products with random directions; features that fewer than"
        f" {basis.least_pairs} nodes of a silo have are left out of its part"
    )


NODE_DIRECTIONS = Sum(
    name="node_directions",
    word="node_directions",
    title="the directions of nodes' features",
    statistics="how features of its nodes go together",
    tensors=direction_tensors,
    own_names=frozenset({PRODUCTS}),
    sizes=direction_sizes,
    fraction_bits={PRODUCTS: FORM.fraction},
    steady=("nodes.features", "nodes.classes", "nodes.hops", "nodes.directions", "basis.least_pairs"),
    part=DIRECTIONS,
    listed=False,
    row="",
    reason="which features of nodes go together, because they are more than nodes.directions",
    words={PRODUCTS: "how features of its nodes go together, as products with directions that all silos know"},
    disclosure=describe_directions,
)
