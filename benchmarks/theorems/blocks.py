"""A k-community model -> its expected bipartite graph, graphs drawn from it, and their community indicators.

Assumption 1 of the paper (Appendix B): users and items each belong to one of k communities of equal size; the chance
of an edge depends on the two communities alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import Float64
from shared.method.spectrum import low_spectrum

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class BlockModel:
    """Chance of an edge inside community c: evenly spaced from within[0] to within[1]; between any two: `between`.

    thinning multiplies all of them.
    """

    communities: int
    within: tuple[float, float]
    between: float
    thinning: float = 1.0

    def edge_chances(self) -> Float64:
        """The chance of an edge between each two communities, (k, k)."""
        table = np.full((self.communities, self.communities), self.between)
        np.fill_diagonal(table, np.linspace(*self.within, self.communities))
        scaled: Float64 = table * self.thinning
        return scaled


def community_labels(nodes: int, communities: int) -> Int64:
    """(nodes,): communities of equal size, the last ones smaller by one where it does not divide."""
    return np.sort(np.arange(nodes) % communities)


def expected_graph(model: BlockModel, nodes: int) -> sparse.csr_array:
    """E[R] of a graph with `nodes` users and as many items."""
    own = community_labels(nodes, model.communities)
    return sparse.csr_array(model.edge_chances()[own][:, own])


def draw_graph(model: BlockModel, nodes: int, rng: np.random.Generator) -> sparse.csr_array:
    """One graph: independent edges, (nodes, nodes), 0/1."""
    own = community_labels(nodes, model.communities)
    return sparse.csr_array((rng.random((nodes, nodes)) < model.edge_chances()[own][:, own]).astype(np.float64))


def structural_eigenvalues(model: BlockModel, nodes: int, cutoff: int) -> Float64:
    """The `cutoff` lowest eigenvalues of the expected graph's Laplacian, (cutoff,).

    Its matrix has rank k, so that all beyond the k-th are exactly 1.
    """
    eigenvalues = low_spectrum(expected_graph(model, nodes), min(cutoff, model.communities)).eigenvalues
    return np.pad(eigenvalues, (0, cutoff - len(eigenvalues)), constant_values=1.0)


def community_eigengap(eigenvalues: Float64, communities: int) -> float:
    """delta = lambda_{k+1} - lambda_k; 1 stands for a frequency that the list no longer holds."""
    following = eigenvalues[communities] if len(eigenvalues) > communities else 1.0
    return float(following - eigenvalues[communities - 1])


def community_indicators(nodes: int, communities: int) -> Float64:
    """chi (2 nodes, k): orthonormal indicators of the communities, users and items of one community together."""
    table = (np.tile(community_labels(nodes, communities), 2)[:, None] == np.arange(communities)).astype(np.float64)
    scaled: Float64 = table / np.sqrt(table.sum(axis=0))
    return scaled
