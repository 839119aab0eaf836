"""Computes the features of a shard's items from their titles and attributes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.interactions import Shard
from client_service.text.projection import ProjectionEncoder, Values
from shared.method.parameters import Float32


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """Features of N items as rows of length one, or zero for an item of which nothing is known.

    encoder: kind, width and version; encoders of one name are the same function in every silo.
    """

    values: Float32
    encoder: str

    @cached_property
    def digest(self) -> str:
        """Computes sha256 over the encoder's name and the values."""
        return hashlib.sha256(f"{self.encoder}\n".encode() + self.values.astype("<f4").tobytes()).hexdigest()


def item_features(shard: Shard, width: int = 64) -> ItemFeatures | None:
    """Encodes a shard's items by the projection, which is the same function in every silo.

    None for a shard without titles and attributes.
    """
    if shard.titles is None and shard.features is None:
        return None
    encoder = ProjectionEncoder(width)
    titles = shard.titles or (None,) * len(shard.item_ids)
    values = encoder.encode(titles, attribute_columns(shard.features))
    return ItemFeatures(values, encoder.name) if values.any() else None


def attribute_columns(features: pl.DataFrame | None) -> dict[str, Values]:
    """Converts the columns of a shard's features to what encoders take."""
    if features is None:
        return {}
    return {column.name: column_values(column) for column in features.get_columns()}


def column_values(column: pl.Series) -> Values:
    """Converts a column to texts, or to numbers with NaN where none is known."""
    if column.dtype == pl.String:
        return column.to_list()
    numbers: NDArray[np.float64] = column.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
    return numbers
