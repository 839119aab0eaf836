"""Anchor: the neutral random bipartite graph G_R and its kernel K^R (Appendix D.3, Eq. 16)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import Counts
from shared.method.divergence import kernel
from shared.method.graph import Float64, interaction_matrix
from shared.method.settings import AnchorSettings, MethodSettings
from shared.method.spectrum import low_spectrum

if TYPE_CHECKING:  # as in shared.method.spectrum
    from scipy import sparse

TOLERANCE = 1e-9  # two machines agree on a kernel to 1e-13; it sums to 1


def draw_gnmk(users: int, items: int, *, edges: int, generator: np.random.Generator) -> sparse.csr_array:
    """Draws a random graph with exactly `edges` distinct edges, uniform among all pairs.

    The complete graph where there are no more pairs.
    """
    total = users * items
    # Without shuffling, a sparse draw takes memory of the order of the edges, not of users x items.
    chosen = generator.choice(total, min(edges, total), replace=False, shuffle=False)
    picked: NDArray[np.int64] = np.asarray(chosen, dtype=np.int64)
    return interaction_matrix(picked // items, picked % items, (users, items))


def draw_er(users: int, items: int, *, edges: int, generator: np.random.Generator) -> sparse.csr_array:
    """Draws a random graph in which each edge is independent, p = edges / pairs."""
    total = users * items
    count = int(generator.binomial(total, min(1.0, edges / total)))
    # A graph without any edge has no spectrum to compare with; with 8 edges expected, one draw in 3,000 is empty.
    return draw_gnmk(users, items, edges=max(1, count), generator=generator)


def draw_anchor(method: MethodSettings, size: Counts, *, seed: int, number: int) -> Float64:
    """Draws K^R of round `number` (0: whole run), (<= Phi,), summing to 1.

    It is the same wherever it is drawn. The aggregator draws it to hand it out, and each client draws it by itself:
    an aggregator that could choose K^R would read a client's spectrum out of its answers, one rho an eigenvalue.
    """
    settings = method.anchor
    with _DRAWING:  # what another thread is drawing need not be drawn again
        return _draw(settings.graph, size, method.cutoff, seed, number if settings.every_round else None)


_DRAWING = threading.Lock()


@lru_cache(maxsize=8)
def _draw(graph: str, size: Counts, cutoff: int, seed: int, number: int | None) -> Float64:
    generator = np.random.default_rng([seed] if number is None else [seed, number])
    draw = draw_gnmk if graph == "gnmk" else draw_er
    values = low_spectrum(draw(size.users, size.items, edges=size.edges, generator=generator), cutoff).eigenvalues
    found = kernel(values)
    found.flags.writeable = False  # it is shared by all who ask
    return found


def load_solver() -> None:
    """Loads what draws an anchor, which takes longer than to draw one.

    A service that does so at its start makes no round wait for it.
    """
    from scipy.sparse import linalg

    del linalg


def declared_size(settings: AnchorSettings) -> Counts:
    """Returns the graph size that the settings declare."""
    return Counts(users=settings.users, items=settings.items, edges=settings.edges)


def choose_size(settings: AnchorSettings, counts: Sequence[Counts]) -> tuple[Counts, str]:
    """Returns the size of G_R and where it came from.

    counts: sizes that enrolled clients agreed to give.
    """
    declared = declared_size(settings)
    if settings.size == "declared" or not counts:
        return declared, f"declared {declared.users} x {declared.items} x {declared.edges}"
    rows = np.array([(count.users, count.items, count.edges) for count in counts], dtype=np.float64)
    users, items, edges = (round(value) for value in rows.mean(axis=0))
    return Counts(users=users, items=items, edges=edges), f"mean of the counts of {len(counts)} clients"


def is_same_kernel(first: Float64, second: Float64) -> bool:
    """Tells whether two kernels are the same except for rounding."""
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE))
