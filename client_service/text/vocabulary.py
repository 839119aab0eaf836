"""Encodes titles and attributes of items by a catalogue's vocabulary and its SVD.

The fitted state is plain arrays. With it the encoder is the same function for other items and in other silos.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from client_service.text.projection import (
    FIRST_YEAR,
    LAST_YEAR,
    MOST_YEARS,
    YEAR_WEIGHT,
    Float32,
    TextTable,
    Values,
    count_labels,
    join_labels,
    make_text_table,
    place_bumps,
    split_grams,
    split_words,
    unit_rows,
)

if TYPE_CHECKING:
    from scipy import sparse

FEWEST_HOLDERS: Final = 2  # items; what one item alone holds tells nothing of others
MOST_TOKENS, MOST_LABELS = 1 << 15, 64  # of a catalogue, the most frequent
TEXT_WEIGHT, COLUMN_WEIGHT = 0.6, 0.3  # of the words, and of a column of numbers, beside the categories
FIRST_TEXT_WEIGHT: Final = 0.2  # of the words in version 1, whose state does not name it
HOLDS_LENGTH: Final = 3.0  # standard deviations at which a number is cut off
AT_ONCE: Final = 512  # items that are encoded together: bounds the memory
Arrays = Mapping[str, NDArray[Any]]
YEAR_CENTRES: Final = np.linspace(FIRST_YEAR, LAST_YEAR, MOST_YEARS)


@dataclass(frozen=True, eq=False)
class SvdEncoder:
    """Words and n-grams by their decomposition, then columns for categories, years and numbers.

    tokens: V words and n-grams, sorted. rarity: (V,), their inverse document frequency. directions: (V, width).
    labels: categories, sorted. numbers: names of columns, sorted, with mean and deviation of each, (C, 2). text_weight:
    of the words beside the categories.
    """

    tokens: tuple[str, ...]
    rarity: Float32
    directions: Float32
    labels: tuple[str, ...]
    numbers: tuple[str, ...]
    scales: NDArray[np.float64]
    text_weight: float = TEXT_WEIGHT

    @property
    def version(self) -> int:
        """Version of the function: 1 for the smaller weight of words, else 2."""
        return 1 if self.text_weight == FIRST_TEXT_WEIGHT else 2

    @property
    def width(self) -> int:
        """Number of columns of the words."""
        return int(self.directions.shape[1])

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of columns: words, categories, years and numbers.

        After them comes one column for the number of categories.
        """
        return self.width, len(self.labels), MOST_YEARS, len(self.numbers)

    @cached_property
    def name(self) -> str:
        """Name with kind, width of the words, version, and digest of the state.

        With another state it is another function.
        """
        digest = hashlib.sha256()
        for name, one in sorted(self.state.items()):
            digest.update(f"{name} {one.dtype.str} {one.shape}\n".encode() + np.ascontiguousarray(one).tobytes())
        return f"svd/{self.width}/{self.version}/{digest.hexdigest()[:16]}"

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays from which `from_state` makes the encoder again."""
        texts = {"tokens": self.tokens, "labels": self.labels, "numbers": self.numbers}
        joined = {name: np.frombuffer("\n".join(one).encode(), dtype=np.uint8) for name, one in texts.items()}
        arrays: dict[str, NDArray[Any]] = {
            "rarity": self.rarity,
            "directions": self.directions,
            "scales": self.scales,
        }
        weight: dict[str, NDArray[Any]] = {} if self.version == 1 else {"text_weight": np.array([self.text_weight])}
        return {**joined, **arrays, **weight}

    @classmethod
    def from_state(cls, state: Arrays) -> SvdEncoder:
        """Makes the encoder from its state.

        Raises ValueError, with what was expected, for arrays that do not fit.
        """
        try:
            texts = {name: bytes(state[name]).decode() for name in ("tokens", "labels", "numbers")}
            tokens, labels, numbers = (tuple(text.split("\n")) if text else () for text in texts.values())
            rarity, directions, scales = state["rarity"], state["directions"], state["scales"]
            (text_weight,) = state.get("text_weight", np.array([FIRST_TEXT_WEIGHT])).tolist()
        except (KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"all arrays of a vocabulary, got a missing or unreadable one ({error})") from None
        shapes = (rarity.shape, directions.shape[:1], directions.ndim, scales.shape)
        if shapes != ((len(tokens),), (len(tokens),), 2, (len(numbers), 2)) or not np.isfinite(directions).all():
            raise ValueError(f"a vocabulary of {len(tokens):,} words with a direction each, got other arrays")
        return cls(tokens, rarity, directions, labels, numbers, scales, text_weight)

    @classmethod
    def fit(cls, table: TextTable, width: int) -> SvdEncoder:
        """Fits the encoder to the items of a catalogue.

        ValueError for fewer items or words than the width needs. Log tf-idf of words and n-grams, without those that
        one item alone holds; its leading right singular vectors, from a fixed start.
        """
        from scipy.sparse.linalg import svds

        counts, tokens = _drop_rare(*_count_tokens(table.titles))
        least = min(counts.shape)
        if least <= width:
            expected = f"more than {width:,} items and words that two items hold, for a width of {width:,}"
            raise ValueError(f"{expected}, got {counts.shape[0]:,} items and {counts.shape[1]:,} words")
        holders = np.diff(counts.tocsc().indptr)
        rarity = (np.log((1.0 + len(table.titles)) / (1.0 + holders)) + 1.0).astype(np.float32)
        counts.data = np.log1p(counts.data)
        weighted = counts.multiply(rarity).tocsr()
        lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
        weighted.data /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(weighted.indptr))
        _, sizes, directions = svds(weighted, k=width, v0=np.ones(least, dtype=np.float32) / np.float32(np.sqrt(least)))
        directions = directions[np.argsort(-sizes, kind="stable")].T
        directions *= np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(width)])  # a sign is arbitrary
        numbers = tuple(sorted(table.numbers))
        scales = np.array([_scale(table.numbers[name]) for name in numbers]).reshape(len(numbers), 2)
        return cls(tokens, rarity, directions.astype(np.float32), _frequent_labels(table), numbers, scales)

    def encode(self, titles: Sequence[str | None], columns: Mapping[str, Values] | None = None) -> Float32:
        """Computes the features of items, (N, d).

        Each row has length one, or is zero if nothing is known.
        """
        return self.encode_table(make_text_table(titles, columns or {}))

    def encode_table(self, table: TextTable) -> Float32:
        """Computes the features of a table of items, (N, d)."""
        years = place_bumps(table.years, YEAR_CENTRES, float(YEAR_CENTRES[1] - YEAR_CENTRES[0]))
        blocks = [np.float32(self.text_weight) * self.encode_words(table.titles), self.encode_labels(table)]
        blocks.append(np.float32(YEAR_WEIGHT) * unit_rows(years))
        for name, (mean, deviation) in zip(self.numbers, self.scales, strict=True):
            values = table.numbers.get(name, np.full(len(table.titles), np.nan))
            cut = np.clip((np.arcsinh(values) - mean) / deviation, -HOLDS_LENGTH, HOLDS_LENGTH) / HOLDS_LENGTH
            blocks.append(np.float32(COLUMN_WEIGHT) * np.nan_to_num(cut).astype(np.float32)[:, None])
        blocks.append(count_labels(join_labels(table.categories, len(table.titles))))
        return unit_rows(np.hstack(blocks))

    def encode_words(self, texts: Sequence[str]) -> Float32:
        """Computes the directions of texts, (N, width).

        Each row has length one, or is zero without a known word.
        """
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        for begin in range(0, len(texts), AT_ONCE):
            for row, text in enumerate(texts[begin : begin + AT_ONCE], begin):
                places, weights = self._weigh_tokens(text)
                if len(places):
                    found[row] = weights @ self.directions[places]
        return unit_rows(found)

    def encode_labels(self, table: TextTable) -> Float32:
        """Marks the categories of items, (N, L).

        Each row has length one, or is zero without a known one.
        """
        found = np.zeros((len(table.titles), len(self.labels)), dtype=np.float32)
        places = {label: place for place, label in enumerate(self.labels)}
        held = join_labels(table.categories, len(table.titles))
        pairs = [(row, places[label]) for row, labels in enumerate(held) for label in labels if label in places]
        if pairs:
            found[tuple(np.array(pairs).T)] = 1.0
        return unit_rows(found)

    def _weigh_tokens(self, text: str) -> tuple[NDArray[np.int64], Float32]:
        counts: dict[int, int] = {}
        for token in _split_tokens(text):
            if (place := self._places.get(token)) is not None:
                counts[place] = counts.get(place, 0) + 1
        places = np.fromiter(counts, dtype=np.int64, count=len(counts))
        repeats = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        return places, np.log1p(repeats) * self.rarity[places]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.tokens)}


def _split_tokens(text: str) -> list[str]:
    """Lists words, each with a blank before it, and n-grams of characters."""
    words = split_words(text)
    return [*(f" {word}" for word in words), *(gram for word in words for gram in split_grams(word))]


def _count_tokens(texts: Sequence[str]) -> tuple[sparse.csr_array, list[str]]:
    """Counts the tokens of each text, (N, V)."""
    from scipy import sparse

    places: dict[str, int] = {}
    met, ends = array("i"), array("q", [0])
    for text in texts:
        met.extend(places.setdefault(token, len(places)) for token in _split_tokens(text))
        ends.append(len(met))
    indices, indptr = np.asarray(met, dtype=np.int32), np.asarray(ends, dtype=np.int64)
    found = sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(texts), len(places)))
    found.sum_duplicates()
    return found, list(places)


def _drop_rare(counts: sparse.csr_array, tokens: list[str]) -> tuple[sparse.csr_array, tuple[str, ...]]:
    """Keeps the tokens that several items hold, in sorted order.

    Of very many the most frequent are kept.
    """
    holders = np.bincount(counts.indices, minlength=len(tokens))
    kept = [place for place in np.argsort(-holders, kind="stable")[:MOST_TOKENS] if holders[place] >= FEWEST_HOLDERS]
    kept.sort(key=tokens.__getitem__)
    return counts[:, kept].tocsr(), tuple(tokens[place] for place in kept)


def _frequent_labels(table: TextTable) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for labels in join_labels(table.categories, len(table.titles)):
        for label in set(labels):
            counts[label] = counts.get(label, 0) + 1
    known = [label for label, count in counts.items() if count >= FEWEST_HOLDERS]
    return tuple(sorted(sorted(known, key=lambda label: (-counts[label], label))[:MOST_LABELS]))


def _scale(values: NDArray[np.float64]) -> tuple[float, float]:
    known = np.arcsinh(values[np.isfinite(values)])
    deviation = float(known.std()) if len(known) else 0.0
    return (float(known.mean()) if len(known) else 0.0), deviation or 1.0
