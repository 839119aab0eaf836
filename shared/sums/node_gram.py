"""Gram sums of node graphs: products of the design's columns, and with labels.

A silo sends the upper triangle of Phi' Phi and Phi' Y, Phi (n, D) the design of its training nodes, which all silos
make alike, and Y (n, c) with a one at each node's class. The first class is left out: its column follows from the
others, because Phi has a column of ones. A ridge on the sums is the ridge on all silos' nodes.

A number has two words of 32 bits: one of 22 bits, whose sums have room for 2^10 silos, and one with its sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import Part
from shared.method.node_settings import NodeSettings
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.node_directions import DIRECTIONS, require_sizes
from shared.sums.sum import Float64, Shapes, Sum
from shared.sums.wide_numbers import WideNumbers

SQUARE, RIGHT = "nodes.gram", "nodes.labels"
WORDS, BITS = 2, 22


def gram_number_format(nodes: NodeSettings) -> WideNumbers:
    """Returns how numbers of Gram sums are written."""
    return WideNumbers(WORDS, BITS, nodes.fraction_bits)


def gram_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of Phi' Phi and Phi' Y, the latter without the first class.

    Their shapes are (2, D (D + 1) / 2) and (2, D (c - 1)).
    """
    nodes = require_sizes(method.nodes)
    columns = nodes.columns
    return (
        Tensor(SQUARE, (WORDS, columns * (columns + 1) // 2), "zeros", dtype="U32"),
        Tensor(RIGHT, (WORDS, columns * (nodes.classes - 1)), "zeros", dtype="U32"),
    )


def gram_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns no sizes, as all follow from the settings of nodes."""
    del basis, shapes
    return {}


def encode_gram(square: Float64, right: Float64, nodes: NodeSettings, clients: int) -> dict[str, NDArray[np.uint32]]:
    """Encodes Phi' Phi (D, D) and Phi' Y (D, c) in words.

    Raises ProtocolError for numbers that a sum has no room for.
    """
    form = gram_number_format(nodes)
    upper = np.ascontiguousarray(square[np.triu_indices(len(square))])
    return {
        SQUARE: form.encode(upper, clients, SQUARE),
        RIGHT: form.encode(np.ascontiguousarray(right[:, 1:]).ravel(), clients, RIGHT),
    }


def decode_gram(sums: Mapping[str, NDArray[np.uint32]], nodes: NodeSettings) -> tuple[Float64, Float64]:
    """Decodes Phi' Phi (D, D) and Phi' Y (D, c) of a sum."""
    form, columns = gram_number_format(nodes), nodes.columns
    square = np.zeros((columns, columns))
    square[np.triu_indices(columns)] = form.decode(sums[SQUARE])
    square += np.triu(square, 1).T
    others = form.decode(sums[RIGHT]).reshape(columns, nodes.classes - 1)
    return square, np.concatenate([square[:, :1] - others.sum(1, keepdims=True), others], axis=1)


def find_directions_part(method: MethodSettings) -> Part | None:
    """Returns the part of the directions of features, where features are projected."""
    return DIRECTIONS if method.nodes.projected else None


def describe_gram(basis: BasisSettings) -> str:
    """Describes what all silos learn by Gram sums."""
    return (
        "how features of nodes and of their neighbours go together, and with each class, in all silos' training nodes;"
        f" classes of which a silo has fewer than {basis.least_pairs} training nodes are left out of its part"
    )


NODE_GRAM = Sum(
    name="node_gram",
    word="node_gram",
    title="the Gram sums of nodes",
    statistics="how features of its labelled nodes go together, and with labels",
    tensors=gram_tensors,
    own_names=frozenset({SQUARE, RIGHT}),
    sizes=gram_sizes,
    fraction_bits={},
    steady=(
        *(f"nodes.{name}" for name in ("features", "classes", "hops", "directions", "random_features")),
        "nodes.fraction_bits",
        "basis.least_pairs",
    ),
    listed=False,
    base_part=find_directions_part,
    default_task="nodes",
    row="column of features",
    reason="how features of nodes go together, and with labels, because silos hold graphs of nodes",
    words={
        SQUARE: "how features of its labelled nodes and of their neighbours go together, summed over nodes",
        RIGHT: "how these features go together with each class, summed over nodes",
    },
    disclosure=describe_gram,
)
