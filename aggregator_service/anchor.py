"""Anchor settings and a seed -> the neutral random bipartite graph G_R -> its kernel K^R (Appendix D.3, Eq. 16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.divergence import kernel
from shared.graph import interaction_matrix
from shared.schemas import Counts
from shared.settings import AnchorSettings, MethodSettings
from shared.spectrum import low_spectrum


@dataclass(frozen=True)
class Anchor:
    """K^R, and where the size of G_R came from."""

    kernel: tuple[float, ...]
    source: str


def gnmk(users: int, items: int, *, edges: int, generator: np.random.Generator) -> sparse.csr_array:
    """`edges` distinct edges, uniform among all users x items; the complete graph when there are no more than that."""
    total = users * items
    # Without shuffling, a sparse draw takes memory of the order of the edges, not of users x items.
    chosen = generator.choice(total, min(edges, total), replace=False, shuffle=False)
    picked: NDArray[np.int64] = np.asarray(chosen, dtype=np.int64)
    return interaction_matrix(picked // items, picked % items, (users, items))


def er(users: int, items: int, *, edges: int, generator: np.random.Generator) -> sparse.csr_array:
    """Every edge independently with p = edges / (users x items): a binomial number of uniform distinct edges."""
    total = users * items
    count = int(generator.binomial(total, min(1.0, edges / total)))
    # A graph without any edge has no spectrum to compare with; with 8 edges expected, one draw in 3,000 is empty.
    return gnmk(users, items, edges=max(1, count), generator=generator)


def anchor(method: MethodSettings, counts: Sequence[Counts], *, seed: int, number: int) -> Anchor:
    """The anchor of round `number`. `counts`: what the enrolled clients agreed to give."""
    size, source = _size(method.anchor, counts)
    generator = np.random.default_rng([seed, number] if method.anchor.every_round else [seed])
    draw = gnmk if method.anchor.graph == "gnmk" else er
    graph = draw(size.users, size.items, edges=size.edges, generator=generator)
    values = kernel(low_spectrum(graph, method.cutoff).eigenvalues)
    return Anchor(tuple(float(value) for value in values), source)


def _size(settings: AnchorSettings, counts: Sequence[Counts]) -> tuple[Counts, str]:
    declared = Counts(users=settings.users, items=settings.items, edges=settings.edges)
    if settings.size == "declared" or not counts:
        return declared, f"declared {declared.users} x {declared.items} x {declared.edges}"
    rows = np.array([(count.users, count.items, count.edges) for count in counts], dtype=np.float64)
    users, items, edges = (round(value) for value in rows.mean(axis=0))
    return Counts(users=users, items=items, edges=edges), f"mean of the counts of {len(counts)} clients"
