"""Finds items whose titles resemble a searched text: despite typing errors, and by their features.

The index is plain arrays, which the trainer compiles and the server maps. Shapes: N items, V words, d features.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.texts import Texts, text_arrays
from client_service.text.feature_file import TextEncoder, make_encoder
from client_service.text.projection import (
    COMMON_WEIGHT,
    COMMON_WORDS,
    Float32,
    ProjectionEncoder,
    TextTable,
    Values,
    join_labels,
    make_text_table,
    split_words,
    unit_rows,
)

PREFIX: Final = "search-"  # of the names of all arrays
MOST_WORDS, LONGEST_WORD = 12, 32  # of a query; the rest is not looked at
MOST_CANDIDATES: Final = 32  # words of the vocabulary that are compared with a word letter by letter
LEAST_SHARED: Final = 0.3  # share of a word's pairs of letters that a candidate has
PAIRS_OF_ERROR: Final = 3  # pairs of letters that one error changes at most
BEGINNING: Final = 0.9  # likeness of a word that begins with the searched one
FEWEST_LETTERS: Final = 3  # of a word that may have a typing error, or be the beginning of another
TWO_ERRORS_FROM: Final = 6  # letters of a searched word that may have two typing errors
LEAST_COVERED: Final = 0.7  # share of the searched words, by their letters, that an item must have
LEAST_COSINE, LEAST_SHARE = 0.5, 0.6  # of an item's features with the query's, and of the best item's cosine
MOST_LIKE: Final = 50  # items found by features
YEAR: Final = re.compile(r"\b(1[89]\d\d|20\d\d)\b")
Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64]
Likely = dict[str, dict[int, float]]
"""Words of a query, each with the words of the vocabulary that it can mean and their likeness."""
Found = list[tuple[int, Literal["typing", "meaning"]]]
"""Rows of items, the best first, each with the way in which it was found."""


def search_arrays(titles: Sequence[str | None], columns: Mapping[str, Values]) -> dict[str, NDArray[Any]]:
    """Makes the arrays of an index of N items."""
    table = make_text_table(titles, columns)
    labels = sorted({label for held in join_labels(table.categories, len(titles)) for label in held})
    held = [split_words(title or "") for title in titles]
    words = sorted({word for one in held for word in one})
    places = {word: place for place, word in enumerate(words)}
    found_words = array("q", (places[word] for one in held for word in dict.fromkeys(one)))
    rows = np.repeat(np.arange(len(held)), [len(set(one)) for one in held])
    counts = [len(_split_pairs(word)) for word in words]
    gram_keys = array("I", (crc32(gram.encode()) for word in words for gram in _split_pairs(word)))
    keys, gram_places = np.unique(np.asarray(gram_keys, dtype=np.uint32), return_inverse=True)
    found: dict[str, NDArray[Any]] = {
        **text_arrays("words", words),
        **text_arrays("labels", labels),
        **_list_arrays("rows", np.asarray(found_words, dtype=np.int64), rows, len(words)),
        "gram-keys": keys,
        "gram-counts": np.array(counts, dtype=np.int32),
        **_list_arrays("grams", gram_places, np.repeat(np.arange(len(words)), counts), len(keys)),
        "lengths": np.array([len(one) for one in held], dtype=np.int32),
    }
    return {f"{PREFIX}{name}": one for name, one in found.items()}


def feature_arrays(values: Float32, encoder: TextEncoder | None) -> dict[str, NDArray[Any]]:
    """Makes the arrays by which items are found by their features.

    There are none for an encoder that a server cannot run.
    """
    if encoder is None:
        return {}
    state = {} if isinstance(encoder, ProjectionEncoder) else encoder.state
    blocks = _unit_blocks(values, encoder)
    named: dict[str, NDArray[Any]] = {
        "encoder": np.frombuffer(encoder.name.encode(), dtype=np.uint8),
        "features": blocks,
    }
    named |= {f"state-{name}": one for name, one in state.items()}
    return {f"{PREFIX}{name}": one for name, one in named.items()}


class TitleSearch:
    """An index of titles, and of features where the server can run their encoder."""

    def __init__(self, arrays: Arrays) -> None:
        """Opens the arrays of `search_arrays` and `feature_arrays`; ignores others."""
        self._arrays = {name.removeprefix(PREFIX): one for name, one in arrays.items() if name.startswith(PREFIX)}
        self._words, self._labels = Texts(self._arrays, "words"), Texts(self._arrays, "labels")
        self._lengths: NDArray[np.int32] = self._arrays["lengths"]

    def find(self, text: str, shown: NDArray[np.bool_]) -> Found:
        """Finds shown items (N,) for a text, by words with typing errors, then by features."""
        likely = {word: self._find_similar_words(word) for word in _query_words(text)}
        spelled = [int(row) for row in self._find_by_words(likely) if shown[row]]
        known = set(spelled)
        like = [int(row) for row in self._find_by_features(text, likely) if shown[row] and int(row) not in known]
        return [*((row, "typing") for row in spelled), *((row, "meaning") for row in like)]

    def _find_by_words(self, likely: Likely) -> Rows:
        """Finds items that hold most of the words, the best first.

        Words with one or two other letters count too.
        """
        if not likely:
            return np.zeros(0, dtype=np.int64)
        weights = [len(word) * (COMMON_WEIGHT if word in COMMON_WORDS else 1.0) for word in likely]
        covered = np.zeros(len(self._lengths), dtype=np.float64)
        for places, weight in zip(likely.values(), weights, strict=True):
            best = np.zeros(len(self._lengths), dtype=np.float64)
            for place, likeness in sorted(places.items(), key=lambda pair: pair[1]):
                best[self._list("rows", place)] = likeness
            covered += weight * best
        rows = np.flatnonzero(covered >= LEAST_COVERED * sum(weights))
        found: Rows = rows[np.lexsort((rows, self._lengths[rows], -covered[rows]))]
        return found

    def _find_by_features(self, text: str, likely: Likely) -> Rows:
        """Finds items whose features have a large cosine with the text's, best first."""
        query = None if self._encoder is None else self._encode_query(self._encoder, text, likely)
        if query is None or not query.any():
            return np.zeros(0, dtype=np.int64)
        cosines = self._arrays["features"] @ query
        rows = np.flatnonzero(cosines >= max(LEAST_COSINE, LEAST_SHARE * float(cosines.max(initial=0.0))))
        found: Rows = rows[np.lexsort((rows, -cosines[rows]))][:MOST_LIKE]
        return found

    @cached_property
    def _encoder(self) -> TextEncoder | None:
        if "encoder" not in self._arrays:
            return None
        state = {name.removeprefix("state-"): one for name, one in self._arrays.items() if name.startswith("state-")}
        return make_encoder(bytes(self._arrays["encoder"]).decode(), state)

    def _encode_query(self, encoder: TextEncoder, text: str, likely: Likely) -> Float32:
        """Encodes the categories, the year and the corrected words of a text.

        Words of no title are left out. The projection of words is noise beside categories: it is used where items
        have no categories.
        """
        parts = [*likely, *map(" ".join, pairwise(likely))]
        known = [part for part in parts if self._place(self._labels, part) is not None]
        year = YEAR.search(text)
        title = ""
        if not isinstance(encoder, ProjectionEncoder) or not len(self._labels):
            best = [max(places, key=lambda place: places[place]) for places in likely.values() if places]
            title = YEAR.sub(" ", " ".join(self._words[place] or "" for place in best))
        years = np.array([float(year[1]) if year else np.nan])
        table = TextTable([title], {"category": ["|".join(known)]}, years, {})
        found = _unit_blocks(encoder.encode_table(table), encoder)[0]
        named: Float32 = found / np.float32(max(1.0, np.square(found).sum()))  # the mean over the blocks that are named
        return named

    def _find_similar_words(self, word: str) -> dict[int, float]:
        """Finds the vocabulary's words that a searched word can mean, with likenesses in (0, 1]."""
        found: dict[int, float] = {}
        if len(word) >= FEWEST_LETTERS:
            first, last = bisect_left(self._words, word), bisect_left(self._words, f"{word}\U0010ffff")  # type: ignore[type-var]
            found = dict.fromkeys(range(first, last), BEGINNING)
        if (exact := self._place(self._words, word)) is not None:
            found[exact] = 1.0
        if len(word) < FEWEST_LETTERS or word.isdigit():
            return found
        most = 2 if len(word) >= TWO_ERRORS_FROM and not found else 1
        for place in self._candidates(word, most):
            other = self._words[place] or ""
            errors = 0 if place in found else count_errors(word, other, most)
            if 0 < errors <= most:
                found[place] = 1.0 - errors / max(len(word), len(other))
        return found

    def _candidates(self, word: str, most: int) -> list[int]:
        """Lists words that share letter pairs with one, and differ by few errors.

        most: largest number of errors.
        """
        keys: NDArray[np.uint32] = self._arrays["gram-keys"]
        grams = np.unique(np.array([crc32(gram.encode()) for gram in _split_pairs(word)], dtype=np.uint32))
        places = np.searchsorted(keys, grams)
        known = [
            int(place) for place, gram in zip(places, grams, strict=True) if place < len(keys) and keys[place] == gram
        ]
        if not known:
            return []
        counts = np.bincount(np.concatenate([self._list("grams", place) for place in known]))
        sizes: NDArray[np.int32] = self._arrays["gram-counts"]
        held = np.flatnonzero(counts >= max(LEAST_SHARED * len(grams), len(grams) - PAIRS_OF_ERROR * most))
        held = held[np.abs(sizes[held] - len(grams)) <= most + 1]
        shares = 2.0 * counts[held] / (sizes[held] + len(grams))  # Dice's coefficient
        return [int(place) for place in held[np.argsort(-shares, kind="stable")][:MOST_CANDIDATES]]

    @staticmethod
    def _place(texts: Texts, text: str) -> int | None:
        place = bisect_left(texts, text)  # type: ignore[type-var]
        return place if place < len(texts) and texts[place] == text else None

    def _list(self, name: str, place: int) -> NDArray[np.integer]:
        bounds = self._arrays[f"{name}-indptr"]
        found: NDArray[np.integer] = self._arrays[f"{name}-indices"][bounds[place] : bounds[place + 1]]
        return found


def _unit_blocks(values: Float32, encoder: TextEncoder) -> Float32:
    """Scales the words, categories and years of each item to length one, (N, d).

    So each of them counts alike. The number of categories is left out.
    """
    bounds = np.cumsum([0, *encoder.blocks])
    return np.hstack([unit_rows(values[:, first:last]) for first, last in pairwise(bounds)])


def count_errors(one: str, other: str, most: int) -> int:
    """Counts the single-letter errors between one word and another.

    An error adds, drops or changes a letter, or swaps it with the next. Returns most + 1 for more. The distance of
    Damerau and Levenshtein, each letter touched once.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    one, other = one[begin:], other[begin:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        earlier, before, row = before, row, [place]
        for at, other_letter in enumerate(other, 1):
            cost = min(before[at] + 1, row[-1] + 1, before[at - 1] + (letter != other_letter))
            if place > 1 and at > 1 and letter == other[at - 2] and one[place - 2] == other_letter:
                cost = min(cost, earlier[at - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def _query_words(text: str) -> list[str]:
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in split_words(text)))[:MOST_WORDS]


def _split_pairs(word: str) -> set[str]:
    """Lists the pairs of neighbouring letters of a word with its ends marked."""
    marked = f"<{word}>"
    return {marked[at : at + 2] for at in range(len(marked) - 1)}


def _list_arrays(
    name: str, lists: NDArray[np.int64], members: NDArray[np.int64], count: int
) -> dict[str, NDArray[Any]]:
    """Makes the arrays of lists from pairs of a list's place and a member."""
    order = np.lexsort((members, lists))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=count))]).astype(np.int64)
    return {f"{name}-indptr": indptr, f"{name}-indices": members[order].astype(np.int32)}
