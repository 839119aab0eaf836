"""Computes the features of a shard's items from titles and attributes, or reads computed ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.interactions import Shard
from client_service.text.feature_file import TextEncoder, align_rows, read_feature_file
from client_service.text.projection import ProjectionEncoder, Values
from shared.errors import DataError
from shared.method.parameters import Float32

DEFAULT_WIDTH: Final = 64


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """Features of N items as rows of length one.

    The row of an item of which nothing is known is zero. encoder: kind, width and version; encoders of one name are the
    same function in every silo. text_encoder: that function, for items and texts that come later; None for one that
    needs more than numpy.
    """

    values: Float32
    encoder: str
    text_encoder: TextEncoder | None = field(default=None, repr=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the encoder's name and the values."""
        return hashlib.sha256(f"{self.encoder}\n".encode() + self.values.astype("<f4").tobytes()).hexdigest()


_COMPUTED: WeakKeyDictionary[Shard, dict[int, ItemFeatures | None]] = WeakKeyDictionary()


def item_features(shard: Shard, width: int = DEFAULT_WIDTH) -> ItemFeatures | None:
    """Returns the features of a shard's items, from features.npz or by the projection.

    width: of the projection, which is the same function in every silo; a features.npz has its own. None for a shard
    without titles and attributes. Raises DataError for a features.npz that is damaged or of other items.
    """
    computed = _COMPUTED.setdefault(shard, {})
    if width not in computed:
        computed[width] = _compute(shard, width)
    return computed[width]


def _compute(shard: Shard, width: int) -> ItemFeatures | None:
    if shard.feature_file is not None:
        return _read_features(shard)
    if shard.titles is None and shard.features is None:
        return None
    encoder = ProjectionEncoder(width)
    values = encoder.encode(shard.titles or (None,) * len(shard.item_ids), attribute_columns(shard.features))
    return ItemFeatures(values, encoder.name, encoder) if values.any() else None


def unmet_features(shard: Shard) -> Float32 | None:
    """Computes the features of a shard's unmet items once, (U, d).

    The encoder is that of its other items. None without unmet items, or without features of the others.
    """
    features, unmet = item_features(shard), shard.unmet
    if features is None or unmet is None:
        return None
    if shard not in _UNMET:
        _UNMET[shard] = _compute_unmet(shard, features, unmet)
    return _UNMET[shard]


_UNMET: WeakKeyDictionary[Shard, Float32] = WeakKeyDictionary()


def _compute_unmet(shard: Shard, features: ItemFeatures, unmet: pl.DataFrame) -> Float32:
    ids = unmet["item"].to_list()
    found, known = np.zeros((len(ids), features.values.shape[1]), np.float32), np.zeros(len(ids), dtype=bool)
    if shard.feature_file is not None:
        found, known = align_rows(read_feature_file(shard.feature_file), ids)
    missing = np.flatnonzero(~known)
    if features.text_encoder is not None and len(missing):
        titles = unmet["title"].gather(missing).to_list()
        found[missing] = features.text_encoder.encode(titles, attribute_columns(unmet.drop("item", "title"), missing))
    return found


def _read_features(shard: Shard) -> ItemFeatures:
    """Reads the vectors of the shard's items.

    The encoder computes those of items that came later, if it can.
    """
    assert shard.feature_file is not None
    found = read_feature_file(shard.feature_file)
    values, known = align_rows(found, shard.item_ids)
    if not known.any():
        expected = "expected vectors of this shard's items, got only those of other items"
        raise DataError(f"{shard.feature_file}: {expected}: make it anew by `lpsfed encode`")
    encoder, missing = found.text_encoder, np.flatnonzero(~known)
    if encoder is not None and len(missing):
        titles = [None if shard.titles is None else shard.titles[row] for row in missing]
        values[missing] = encoder.encode(titles, attribute_columns(shard.features, missing))
    return ItemFeatures(values, found.encoder, encoder)


def attribute_columns(features: pl.DataFrame | None, rows: NDArray[np.int64] | None = None) -> dict[str, Values]:
    """Converts columns of a shard's features for encoders, in all rows or some."""
    if features is None:
        return {}
    chosen = features if rows is None else features[rows]
    return {column.name: column_values(column) for column in chosen.get_columns()}


def column_values(column: pl.Series) -> Values:
    """Converts a column to texts, or to numbers with NaN if none is known."""
    if column.dtype == pl.String:
        return column.to_list()
    numbers: NDArray[np.float64] = column.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
    return numbers
