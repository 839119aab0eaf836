"""Encodes titles and attributes of items by a fixed random projection.

The projection follows from a seed alone. So it is the same function in every silo, and nothing about it is exchanged.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Values = Sequence[str | None] | NDArray[np.float64]
"""A column of an item table: texts, or numbers with NaN if none is known."""

VERSION: Final = 1
SEED: Final = 0x5EED
SEPARATORS: Final = re.compile(r"[|;]")
YEAR_IN_TITLE: Final = re.compile(r"[(\[（]\s*(1[89]\d\d|20\d\d)(?:\s*[-–]\s*(?:\d{4})?)?\s*[)\]）]")
YEAR_NAMES: Final = frozenset({"year", "release_year", "publication_year", "jahr", "erscheinungsjahr", "年份"})
_BEHAVIOUR = (
    "tags? ratings? rated stars scores? reviews? views? viewed clicks? clicked plays? listens downloads? sales sold "
    "purchases? purchased orders? ordered likes? liked votes? favou?rites? wishlists? popularity bestseller bewertung "
    "bewertungen verkäufe 评分 标签 销量"
)
BEHAVIOUR: Final = re.compile(rf"(?:^|[\W_])(?:{'|'.join(_BEHAVIOUR.split())})(?:[\W_]|$)")
"""Words in names of columns that hold what users do. A new item has no such values, so they are no features."""
WORD_ENDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
FIRST_YEAR, LAST_YEAR, MOST_YEARS = 1935.0, 2030.0, 20  # of the bumps on which years lie, five years apart
NUMBERS_APART: Final = 0.5
NUMBER_CENTRES: Final = np.arange(-12.0, 12.5, NUMBERS_APART)  # of the inverse hyperbolic sine, near to a logarithm
WORD_WEIGHT, YEAR_WEIGHT, NUMBER_WEIGHT = 0.1, 0.9, 0.3  # beside categories, whose weight is 1
USUAL_COUNT, MOST_COUNTED, COUNT_WEIGHT = 2.0, 6.0, 0.15  # of an item's categories
WORDS: Final = re.compile(r"\w+|[^\w\s!-/:-@\[-`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff0f]")
WIDE: Final = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+)")
_COMMON = (
    "the a an and or of in on at to for from with by is it der die das den dem des ein eine einer und oder von im am "
    "zu mit für auf la le les l de du des et un une el los las y il lo i 的"
)
COMMON_WORDS: Final = frozenset(_COMMON.split())
COMMON_WEIGHT: Final = 0.1
HASH_BYTES: Final = 64  # of one blake2b hash
LONGEST_CATEGORY: Final = 60  # characters; a longer value is a text
GRAMS: Final = (3, 4, 5)
GRAM_WEIGHT: Final = 0.3  # of an n-gram of characters beside a word
AT_ONCE: Final = 4096  # items that are summed together: bounds the memory


@dataclass(frozen=True)
class TextTable:
    """Texts and attributes of items by block, (N,) each.

    They are titles without years, categories, years (NaN: none), and numbers.
    """

    titles: Sequence[str]
    categories: Mapping[str, Sequence[str | None]]
    years: NDArray[np.float64]
    numbers: Mapping[str, NDArray[np.float64]]


def make_text_table(titles: Sequence[str | None], columns: Mapping[str, Values]) -> TextTable:
    """Sorts the columns of items into blocks, and takes years out of titles.

    Columns that users make (tags, ratings, counts of views) are left out.
    """
    plain = [title or "" for title in titles]
    found = [YEAR_IN_TITLE.search(title) for title in plain]
    years = np.array([float(one[1]) if one else np.nan for one in found])
    texts = [YEAR_IN_TITLE.sub(" ", title) if one else title for title, one in zip(plain, found, strict=True)]
    categories: dict[str, Sequence[str | None]] = {}
    numbers: dict[str, NDArray[np.float64]] = {}
    for name, values in columns.items():
        if is_behaviour(name):
            continue
        if name.lower() in YEAR_NAMES:
            known = values if isinstance(values, np.ndarray) else _parse_years(values)
            years = np.where(np.isnan(known), years, known)
        elif isinstance(values, np.ndarray):
            numbers[name.lower()] = values
        elif _are_texts(values):
            texts = [f"{text} {value or ''}" for text, value in zip(texts, values, strict=True)]
        else:
            categories[name.lower()] = values
    return TextTable(texts, categories, years, numbers)


def is_behaviour(name: str) -> bool:
    """Checks if a column holds what users do, by its name."""
    return BEHAVIOUR.search(WORD_ENDS.sub("_", name).lower()) is not None


def _parse_years(values: Sequence[str | None]) -> NDArray[np.float64]:
    found = [re.search(r"\b(1[0-9]\d\d|2[01]\d\d)\b", value or "") for value in values]
    return np.array([float(one[1]) if one else np.nan for one in found])


def _are_texts(values: Sequence[str | None]) -> bool:
    """Checks if most values are too long for the name of a category."""
    parts = [part for value in values[:1000] if value for part in SEPARATORS.split(value)]
    return bool(parts) and float(np.mean([len(part) for part in parts])) > LONGEST_CATEGORY


@dataclass(frozen=True)
class ProjectionEncoder:
    """A random projection of words, n-grams, categories, years and numbers to a width.

    seed: encoders of one seed and one width are the same function.
    """

    width: int = 64
    seed: int = SEED

    @property
    def name(self) -> str:
        """Name with kind, width and version.

        Encoders of one name give the same features of the same item.
        """
        return f"projection/{self.width}/{VERSION}"

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of coordinates: words with categories, and years.

        After them comes one coordinate for the number of categories.
        """
        years = min(MOST_YEARS, self.width // 3)
        return self.width - years - 1, years

    def encode(self, titles: Sequence[str | None], columns: Mapping[str, Values] | None = None) -> Float32:
        """Computes the features of items, (N, width).

        Each row has length one, or is zero if nothing is known.
        """
        return self.encode_table(make_text_table(titles, columns or {}))

    def encode_table(self, table: TextTable) -> Float32:
        """Computes the features of a table of items, (N, width).

        Years have `MOST_YEARS` coordinates of their own, or a third of a small width, and the number of an item's
        categories has the last one. Words, categories and numbers share the others; words weigh little in an item whose
        categories are known.
        """
        shared, years = self.blocks
        rest = replace(self, width=shared)
        labels = join_labels(table.categories, len(table.titles))
        labelled = np.array([[bool(one)] for one in labels])
        words = rest.sum_words(table.titles)
        found = words * np.where(labelled, np.float32(WORD_WEIGHT), np.float32(1.0))
        found += rest.sum_labels(labels)
        for name, values in table.numbers.items():
            bumps = place_bumps(np.arcsinh(values), NUMBER_CENTRES, NUMBERS_APART)
            found += np.float32(NUMBER_WEIGHT) * rest.project_bumps(name, bumps)
        centres = np.linspace(FIRST_YEAR, LAST_YEAR, years)
        bumps = place_bumps(table.years, centres, (LAST_YEAR - FIRST_YEAR) / max(1, years - 1))
        return unit_rows(
            np.hstack([unit_rows(found), np.float32(YEAR_WEIGHT) * unit_rows(bumps), count_labels(labels)])
        )

    def sum_words(self, texts: Sequence[str]) -> Float32:
        """Projects the words and n-grams of texts to all coordinates, (N, width).

        Rows have length one or zero.
        """
        return self._sum_tokens([split_words(text) for text in texts], self._word_vectors)

    def sum_labels(self, labels: Sequence[Sequence[str]]) -> Float32:
        """Projects the categories of items to all coordinates, (N, width).

        Rows have length one or zero.
        """
        return self._sum_tokens(labels, partial(self._sign_vectors, "category"))

    def project_bumps(self, name: str, bumps: Float32) -> Float32:
        """Projects the bumps of a column of numbers to all coordinates, (N, width)."""
        tokens = tuple(f"{name} {place}" for place in range(bumps.shape[1]))
        return unit_rows(bumps @ self._sign_vectors("bump", tokens))

    def _sum_tokens(self, tokens: Sequence[Sequence[str]], make: Callable[[Sequence[str]], Float32]) -> Float32:
        """Sums the vectors of each item's tokens to a row of length one, (N, width)."""
        places: dict[str, int] = {}
        met = array("q", (places.setdefault(one, len(places)) for item in tokens for one in item))
        numbers = np.asarray(met, dtype=np.int64)
        ends = np.cumsum([0, *map(len, tokens)])
        found = np.zeros((len(tokens), self.width), dtype=np.float32)
        if not len(numbers):
            return found
        vectors = make(tuple(places))
        for begin in range(0, len(tokens), AT_ONCE):
            part = slice(begin, min(begin + AT_ONCE, len(tokens)))
            bounds = ends[part.start : part.stop + 1]
            held = np.flatnonzero(np.diff(bounds))
            if len(held):
                rows = vectors[numbers[bounds[0] : bounds[-1]]]
                found[begin + held] = np.add.reduceat(rows, (bounds[:-1] - bounds[0])[held], axis=0)
        return unit_rows(found)

    def _word_vectors(self, words: Sequence[str]) -> Float32:
        """Computes the vector of each word: its own, and with less weight its n-grams'."""
        found = self._sign_vectors("word", words)
        for begin in range(0, len(words), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            grams = [split_grams(word) for word in words[part]]
            found[part] += np.float32(GRAM_WEIGHT) * self._sum_tokens(grams, partial(self._sign_vectors, "gram"))
        weights = np.array([COMMON_WEIGHT if word in COMMON_WORDS else 1.0 for word in words], dtype=np.float32)
        return found * weights[:, None]

    def _sign_vectors(self, block: str, tokens: Sequence[str]) -> Float32:
        """Makes the random vector of each token from its hash, (V, width).

        It has signs of equal size, and length one.
        """
        size, parts = -(-self.width // 8), range(-(-self.width // (8 * HASH_BYTES)))
        keys = [f"{self.seed}/{block}/{part}".encode() for part in parts]
        hashes = b"".join(
            b"".join(blake2b(token.encode(errors="replace"), key=key).digest() for key in keys)[:size]
            for token in tokens
        )
        bits = np.unpackbits(np.frombuffer(hashes, dtype=np.uint8).reshape(len(tokens), size), axis=1)[:, : self.width]
        return (2.0 * bits.astype(np.float32) - 1.0) / np.float32(np.sqrt(self.width))


def join_attributes(texts: Float32, table: TextTable, weight: float) -> Float32:
    """Joins the vectors of texts with the projection of the items' attributes.

    texts: (N, d), of length one or zero.
    """
    attributes = ProjectionEncoder().encode_table(replace(table, titles=("",) * len(table.titles)))
    return unit_rows(np.hstack([np.float32(weight) * texts, attributes]))


def split_words(text: str) -> list[str]:
    """Splits a text into words without case and accents.

    Of Chinese, Japanese and Korean text each character and each pair is a word. An emoji is a word.
    """
    if text.isascii():
        return WORDS.findall(text.lower())
    parts = normalize("NFKD", normalize("NFKC", text).casefold())
    plain = normalize("NFC", "".join(one for one in parts if not "\u0300" <= one <= "\u036f"))
    found = []
    for word in WORDS.findall(plain):
        for run in WIDE.split(word):
            if run and WIDE.fullmatch(run):
                found += [*run, *(run[at : at + 2] for at in range(len(run) - 1))]
            elif run:
                found.append(run)
    return found


def split_grams(word: str) -> list[str]:
    """Lists the n-grams of characters of a word with its ends marked."""
    marked = f"<{word}>"
    return [marked[at : at + size] for size in GRAMS for at in range(len(marked) - size + 1)]


def join_labels(categories: Mapping[str, Sequence[str | None]], count: int) -> list[list[str]]:
    """Lists the categories of each item over all columns.

    A value can hold several, separated by bars.
    """
    found: list[list[str]] = [[] for _ in range(count)]
    for values in categories.values():
        for labels, value in zip(found, values, strict=True):
            labels += [label for part in SEPARATORS.split(value or "") if (label := " ".join(split_words(part)))]
    return found


def count_labels(labels: Sequence[Sequence[str]]) -> Float32:
    """Scales the number of each item's categories, (N, 1).

    Rows of length one do not show this number. 0 for an item without any.
    """
    counts = np.array([len(one) for one in labels], dtype=np.float32)[:, None]
    scaled = (np.minimum(counts, MOST_COUNTED) - USUAL_COUNT) * np.float32(COUNT_WEIGHT)
    found: Float32 = np.where(counts > 0, scaled, np.float32(0.0))
    return found


def place_bumps(values: NDArray[np.float64], centres: NDArray[np.float64], apart: float) -> Float32:
    """Places values on overlapping bumps around centres, (N, C).

    Near values have near rows; NaN has a row of zeros.
    """
    distance = (np.clip(values, centres[0], centres[-1])[:, None] - centres) / apart
    found: Float32 = np.nan_to_num(np.exp(-0.5 * distance**2)).astype(np.float32)
    return found


def unit_rows(values: Float32) -> Float32:
    """Scales each row to length one; a row of zeros stays."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    found: Float32 = (values / np.where(lengths > 0.0, lengths, 1.0)).astype(np.float32)
    return found
