"""The trained score and closed-form ones -> one score to rank by: their weighted sum."""

# Paper: ranking by the trained score alone; here: by a weighted sum, because the trained score sees Phi frequencies of
# the graph, and a sparse graph's items differ above them.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.models.closed_form.least_squares import Weighting
from client_service.models.closed_form.scorers import ClosedFormScorers
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

Code = Float32 | sparse.csr_array
"""What a scorer knows of baskets, one row each."""
Codes = tuple[Code, ...]


class Scorer(Protocol):
    """Closed-form scores of baskets, 0/1 rows over the items, in two steps: the first is kept for the known users."""

    def encode(self, baskets: sparse.csr_array) -> Code:
        """(B, N) -> B rows."""
        ...

    def decode(self, codes: Any) -> Float32:
        """B rows that `encode` made -> scores (B, N)."""
        ...


@dataclass(frozen=True)
class Recipe:
    """What validation chose: `ridge` and loudness of the full-spectrum filter, weighting and loudness of the least
    squares, ridge and loudness of EASE, loudness of each scorer of a common basis, loudness of the items' frequencies.
    Loudness 0 leaves a part out; 1 makes its scores spread over the items as the trained base score does."""

    ridge: float
    filter_loudness: float
    weighting: Weighting
    squares_loudness: float
    ease_ridge: float = 0.0
    ease_loudness: float = 0.0
    common_loudness: float = 0.0
    frequency_loudness: float = 0.0


@dataclass(frozen=True)
class Fusion:
    """Closed-form scorers, each with its loudness. Without any, ranking is by the trained score alone."""

    parts: tuple[tuple[float, Scorer], ...] = ()

    def encoded(self, baskets: sparse.csr_array) -> Codes:
        """What the parts know of 0/1 baskets (B, N)."""
        known = baskets.astype(np.float32)
        return tuple(part.encode(known) for _, part in self.parts)

    def added(self, base: Float32, codes: Codes) -> Float32:
        """base (B, N) + loudness x spread of base x the part's standardised scores; shifts of a row change no rank.

        The sum takes the place of `base`.
        """
        if not self.parts:
            return base
        spread = deviation(base)
        spread[spread == 0] = 1.0  # who the base path knows nothing of has the others' word
        for (loudness, part), code in zip(self.parts, codes, strict=True):
            base += standardise(part.decode(code), loudness * spread)
        return base


def standard_scores(part: Scorer, baskets: sparse.csr_array) -> Float32:
    """Scores of 0/1 baskets (B, N), both steps at once."""
    return part.decode(part.encode(baskets))


def take_codes(codes: Codes, rows: NDArray[np.int64]) -> Codes:
    """The codes of these rows alone."""
    return tuple(code[rows] for code in codes)


def standardise(scores: Float32, spread: Float32 | float = 1.0) -> Float32:
    """Each row with mean 0 and standard deviation `spread`, (B, 1), over the items; a constant row becomes 0."""
    centred: Float32 = scores - scores.mean(axis=1, keepdims=True)
    size = _root_mean_square(centred)
    centred *= spread / np.where(size > 0, size, np.float32(1.0))
    return centred


def deviation(scores: Float32) -> Float32:
    """Standard deviation of each row over the items, (B, 1)."""
    return _root_mean_square(scores - scores.mean(axis=1, keepdims=True))


def _root_mean_square(rows: Float32) -> Float32:
    # np.std does the same in three times as many passes over the items, each of which counts in an answer.
    squares = np.einsum("ij,ij->i", rows, rows)
    found: Float32 = np.sqrt(squares / np.float32(rows.shape[1]))[:, None]
    return found


def fuse(
    recipe: Recipe | None,
    interactions: sparse.csr_array,
    spectrum: Spectrum,
    common: Sequence[Scorer] = (),
    made: ClosedFormScorers | None = None,
) -> Fusion:
    """The scorers of a training graph that the recipe asks for, and those of a common basis. made: the graph's scorers,
    as far as they are made already."""
    if recipe is None:
        return Fusion()
    made = made or ClosedFormScorers(interactions, spectrum)
    parts: list[tuple[float, Scorer]] = []
    if recipe.filter_loudness > 0:
        parts.append((recipe.filter_loudness, made.filter(recipe.ridge)))
    if recipe.squares_loudness > 0:
        parts.append((recipe.squares_loudness, made.squares(recipe.weighting)))
    if recipe.ease_loudness > 0:
        parts.append((recipe.ease_loudness, made.ease(recipe.ease_ridge)))
    if recipe.frequency_loudness > 0:
        parts.append((recipe.frequency_loudness, made.frequency()))
    if recipe.common_loudness > 0:
        parts.extend((recipe.common_loudness, scorer) for scorer in common)
    return Fusion(tuple(parts))
