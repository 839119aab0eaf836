"""Fusion of the trained score and closed-form scores: their weighted sum."""

# Paper: ranking by the trained score alone; here: by a weighted sum, because the trained score sees Phi frequencies of
# the graph, and a sparse graph's items differ above them.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from scipy import sparse

from client_service.models.closed_form.content import ContentSetting
from client_service.models.closed_form.least_squares import Weighting
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.closed_form.scorer_part import Code, Scorer
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

Codes = tuple[Code, ...]
EARLIER = {"filter": "ridge", "squares": "weighting", "ease": "ease_ridge"}
"""Fields of a recipe of an earlier version that hold a scorer's setting, by the scorer's name."""


@dataclass(frozen=True)
class ChosenPart:
    """Scorer of the registry by its name, its setting, and its loudness (weight).

    Loudness 0 leaves it out; 1 makes its scores spread over the items as the trained base score does.
    """

    name: str
    setting: float | Weighting | ContentSetting
    loudness: float


@dataclass(frozen=True)
class Recipe:
    """Fusion that validation chose: closed-form parts and their loudness.

    Loudness: weight of a part over that of the trained score. `common_loudness` is that of each scorer of a common
    basis. cold: setting of content-EASE for items without interactions; None without item metadata.
    """

    parts: tuple[ChosenPart, ...] = ()
    common_loudness: float = 0.0
    cold: ContentSetting | None = None

    @model_validator(mode="before")
    @classmethod
    def read_earlier(cls, given: Any) -> Any:
        """Reads a recipe of an earlier version.

        It had a field for each setting and each loudness.
        """
        if not isinstance(given, dict) or "filter_loudness" not in given:
            return given
        names = ("filter", "squares", "ease", "frequency")
        parts = [
            {
                "name": name,
                "setting": given.get(EARLIER.get(name, ""), 0.0),
                "loudness": given.get(f"{name}_loudness", 0.0),
            }
            for name in names
        ]
        return {"parts": parts, "common_loudness": given.get("common_loudness", 0.0)}

    def loudness(self, name: str) -> float:
        """Returns the loudness of a part; 0 without it."""
        return next((part.loudness for part in self.parts if part.name == name), 0.0)

    def setting(self, name: str) -> float | Weighting | ContentSetting | None:
        """Returns the setting of a part; None without it."""
        return next((part.setting for part in self.parts if part.name == name), None)


@dataclass(frozen=True)
class Fusion:
    """Closed-form scorers fused with the trained score, each with its loudness.

    Without any, ranking is by the trained score alone.
    """

    parts: tuple[tuple[float, Scorer], ...] = ()

    def encode(self, baskets: sparse.csr_array) -> Codes:
        """Encodes 0/1 baskets (B, N) by each part."""
        known = baskets.astype(np.float32)
        return tuple(part.encode(known) for _, part in self.parts)

    def add_to(self, base: Float32, codes: Codes) -> Float32:
        """Adds the parts' standardised scores to base scores (B, N), in place.

        base + loudness x spread of base x the part's standardised scores; shifts of a row change no rank.
        """
        if not self.parts:
            return base
        spread = row_deviations(base)
        spread[spread == 0] = 1.0  # a user without a base score is ranked by the other scores
        for (loudness, part), code in zip(self.parts, codes, strict=True):
            base += standardise(part.decode(code), loudness * spread)
        return base


def standard_scores(part: Scorer, baskets: sparse.csr_array) -> Float32:
    """Scores 0/1 baskets (B, N) by a part, standardised."""
    return part.decode(part.encode(baskets))


def select_codes(codes: Codes, rows: NDArray[np.int64]) -> Codes:
    """Returns the codes of these rows alone."""
    return tuple(code[rows] for code in codes)


def standardise(scores: Float32, spread: Float32 | float = 1.0) -> Float32:
    """Scales each row to mean 0 and standard deviation `spread`, (B, 1), over the items.

    A constant row becomes 0.
    """
    centred: Float32 = scores - scores.mean(axis=1, keepdims=True)
    size = _root_mean_square(centred)
    centred *= spread / np.where(size > 0, size, np.float32(1.0))
    return centred


def row_deviations(scores: Float32) -> Float32:
    """Computes the standard deviation of each row over the items, (B, 1)."""
    return _root_mean_square(scores - scores.mean(axis=1, keepdims=True))


def _root_mean_square(rows: Float32) -> Float32:
    # np.std does the same in three times as many passes over the items, each of which counts in an answer.
    squares = np.einsum("ij,ij->i", rows, rows)
    found: Float32 = np.sqrt(squares / np.float32(rows.shape[1]))[:, None]
    return found


def build_fusion(
    recipe: Recipe | None,
    interactions: sparse.csr_array,
    spectrum: Spectrum,
    common: Sequence[Scorer] = (),
    closed_forms: ClosedFormScorers | None = None,
) -> Fusion:
    """Builds the fusion that a recipe asks for, with the scorers of a common basis.

    closed_forms: the scorers of the graph that are made already; None: they are made here.
    """
    if recipe is None:
        return Fusion()
    closed_forms = closed_forms or ClosedFormScorers(interactions, spectrum)
    loud = (part for part in recipe.parts if part.loudness > 0)
    parts = [(part.loudness, closed_forms.make(part.name, part.setting)) for part in loud]
    if recipe.common_loudness > 0:
        parts.extend((recipe.common_loudness, scorer) for scorer in common)
    return Fusion(tuple(parts))
