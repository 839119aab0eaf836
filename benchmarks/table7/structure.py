"""A client's training graph -> the figures of Table 7 that describe one graph.

The paper names its figures without defining them; the definitions here are ours. A node is a user or an item that has
an edge.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse

from shared.method.graph import Float64, degrees, normalise


def structure_figures(graph: sparse.csr_array, cutoff: int) -> dict[str, float]:
    """The figures of one graph, where n is the number of nodes and E that of edges.

    size: n; degree: 2 E / n; degree_variance: over nodes; density: 2 E / (n (n - 1)); entropy: see `spectral_entropy`;
    energy: the share of the squared singular values of R_hat that the first `cutoff` of them hold. Degree and density
    are those that give the paper's figures for stars, 1.97 and .032.
    """
    connected = _drop_isolated_nodes(graph)
    nodes, edges = sum(connected.shape), connected.nnz
    singular = _singular_values(connected)
    return {
        "users": float(connected.shape[0]),
        "items": float(connected.shape[1]),
        "size": float(nodes),
        "degree": 2.0 * edges / nodes,
        "degree_variance": float(np.concatenate(degrees(connected)).var()),
        "density": 2.0 * edges / (nodes * (nodes - 1)),
        "entropy": spectral_entropy(laplacian_eigenvalues(singular, connected.shape)),
        "energy": float(np.square(singular[:cutoff]).sum() / np.square(singular).sum()),
    }


def laplacian_eigenvalues(singular: Float64, shape: tuple[int, int]) -> Float64:
    """All M + N eigenvalues of L = I - D^-1/2 A D^-1/2: 1 - s and 1 + s, and a 1 for each of the |M - N| others."""
    others = np.ones(abs(shape[0] - shape[1]))
    return np.sort(np.clip(np.concatenate([1.0 - singular, 1.0 + singular, others]), 0.0, 2.0))


def spectral_entropy(eigenvalues: Float64) -> float:
    """Shannon entropy, in bits, of the eigenvalues over their sum: log2 n where all are equal."""
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(-(shares * np.log2(shares)).sum())


def _drop_isolated_nodes(graph: sparse.csr_array) -> sparse.csr_array:
    by_user, by_item = degrees(graph)
    return sparse.csr_array(graph[np.flatnonzero(by_user)][:, np.flatnonzero(by_item)])


def _singular_values(graph: sparse.csr_array) -> Float64:
    """All singular values of R_hat, descending."""
    gram = normalise(graph)
    gram = gram @ gram.T if graph.shape[0] <= graph.shape[1] else gram.T @ gram  # half the work of a decomposition
    values: Float64 = np.sqrt(np.clip(linalg.eigvalsh(gram.toarray())[::-1], 0.0, None))
    return values
