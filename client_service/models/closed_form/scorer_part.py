"""Declarations of closed-form scorers: how the fusion builds, sets and weighs each.

A scorer is made from the `TrainingGraph` of a silo, or from the `SummedPairs` of all silos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

MOST_PAIRS = 6000  # items up to which their pairs are counted once for all settings: 144 MB
LOUDNESSES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of a part beside the sum of the others
FEW_LOUDNESSES = (0.0, 0.25, 0.5, 1.0)
Code = Float32 | sparse.csr_array
"""Codes of baskets that a scorer stores, one row each."""


class Scorer(Protocol):
    """Closed-form scorer of baskets, which are 0/1 rows over the items.

    It works in two steps, so that the codes of the known users can be stored.
    """

    def encode(self, baskets: sparse.csr_array) -> Code:
        """Turns baskets (B, N) into codes of B rows."""
        ...

    def decode(self, codes: Any) -> Float32:
        """Computes the scores of all items (B, N) from codes that `encode` made."""
        ...


class ItemScorer(Scorer, Protocol):
    """Scorer over the common catalogue, which can be restricted to a silo's items."""

    def select_items(self, places: NDArray[np.int64]) -> ItemScorer:
        """Returns the scorer for the items in these rows (N,) of the catalogue alone."""
        ...


@dataclass(frozen=True)
class ItemWeights:
    """Linear scorer x B of a basket x (N,), with item weights B (N, N)."""

    weights: Float32  # (N, N)

    def encode(self, baskets: sparse.csr_array) -> sparse.csr_array:
        """Returns the baskets (B, N) unchanged."""
        return baskets

    def decode(self, baskets: sparse.csr_array) -> Float32:
        """Computes the scores of all items, (B, N)."""
        found: Float32 = baskets @ self.weights
        return found

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """Returns the weights B of these rows and columns, (b, n)."""
        return self.weights[np.ix_(basket, columns)]

    def select_items(self, places: NDArray[np.int64]) -> ItemWeights:
        """Returns the scorer for these items alone.

        A basket holds the silo's own items alone, so that a part of the weights gives the same scores as all of them.
        """
        return ItemWeights(self.weights[np.ix_(places, places)])


@dataclass
class TrainingGraph:
    """Training graph with its low spectrum, item features, and values that several scorers share.

    interactions: (M, N). features: of the items (N, d), None without item metadata. others: `ContentSums` of the other
    silos, None if there are none. What several scorers need is computed once.
    """

    interactions: sparse.csr_array
    spectrum: Spectrum
    features: Float32 | None = None
    others: Any = None
    _computed: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> Float32:
        """X^T X, (N, N): number of users of each pair of items."""
        binary = self.interactions.astype(np.float32)
        return sparse.csr_array(binary.T @ binary).toarray()

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers M of users and N of items."""
        users, items = self.interactions.shape
        return users, items

    @property
    def pairs_fit(self) -> bool:
        """Whether the item pairs fit into memory and items do not outnumber users."""
        users, items = self.shape
        return items <= min(users, MOST_PAIRS)

    def low_frequencies(self, count: int, exponent: float) -> Spectrum:
        """Returns the `count` lowest frequencies of the graph, normalised by this power of the degrees."""
        found: Spectrum = self.compute_once(
            (count, exponent), lambda: self.spectrum.ranking_spectrum(self.interactions, count, exponent)
        )
        return found

    def compute_once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Computes a value of the graph once, and keeps it for a scorer's other settings."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]


class SummedPairs(Protocol):
    """Item pairs, degrees and frequencies from sums of all silos."""

    @property
    def counts(self) -> Float32:
        """Item pair counts G, (C, C).

        Users of both items; on the diagonal, users of one.
        """
        ...

    @property
    def degrees(self) -> Float64:
        """Number of users of each item, (C,)."""
        ...

    @property
    def graph(self) -> Float32:
        """Normalised item graph W, (C, C).

        W = D^-e G D^-e, e = `exponent`.
        """
        ...

    @property
    def exponent(self) -> float:
        """Exponent of the degrees in W."""
        ...

    @property
    def frequencies(self) -> tuple[Float64, Float64]:
        """Leading eigenvalues of W (r,), descending and positive, and their vectors (C, r)."""
        ...


@dataclass(frozen=True)
class ScorerPart:
    """Entry of a closed-form scorer that the fusion can use.

    weight: beside the others where no validation item decides; 0 leaves it to validation. weigh: the same of a graph
    and a setting, where it depends on these; None: `weight`. settings: lists the settings of a graph that validation
    chooses from, numbers or a `Weighting`; none where the scorer does not fit. usual: the one that is kept unless
    another is surely better. make: builds the scorer of a silo's own graph. make_each, score_each: the same for several
    settings at once, and their scores of baskets in turn, if that saves work. from_sums: builds the scorer from the
    item pairs of all silos; None: it needs the silo's own graph. loudnesses: of which validation chooses one, beside
    the sum of the others. from_base: is it also weighed when the search begins at the base score? A part that is not
    costs less than half as much. errors: standard errors by which another setting must be better than the usual one.
    """

    name: str
    weight: float
    settings: Callable[[TrainingGraph], Sequence[Any]]
    usual: Any
    make: Callable[[TrainingGraph, Any], Any]
    make_each: Callable[[TrainingGraph, Sequence[Any]], list[Any]] | None = None
    score_each: Callable[[list[Any], sparse.csr_array], Iterable[Float32]] | None = None
    from_sums: Callable[[SummedPairs], ItemScorer] | None = None
    loudnesses: Sequence[float] = LOUDNESSES
    from_base: bool = True
    weigh: Callable[[TrainingGraph, Any], float] | None = None
    errors: float = 1.0

    def usual_weight(self, graph: TrainingGraph, setting: Any) -> float:
        """Returns the weight beside the other scorers where no validation item decides."""
        return self.weight if self.weigh is None else self.weigh(graph, setting)
