"""What is known of the items of a catalogue -> which of them have a value, as masks (N,), and each item's own facts.

An item has the features of its shard, and over them what applications have said of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.feedback.messages import ItemIn
from client_service.shard import Shard

CATEGORY = "category"  # the key by which an item's categories are asked for
MASK_BYTES, FEWEST_MASKS = 64 << 20, 8  # kept masks together; and how many there are however large the catalogue is

Mask = NDArray[np.bool_]
Value = str | float
Filters = Iterable[tuple[str, tuple[str, ...]]]
"""Keys, each with the values of which an item must have one."""


class _Index(NamedTuple):
    """Of what was said: rows of the items with an attribute, and with each value of a key."""

    with_attribute: dict[str, list[int]]
    with_value: dict[tuple[str, Value], list[int]]


class ItemFacts:
    """The facts at one moment: where they change, another object takes its place, and its masks with it. `told` may
    grow meanwhile."""

    def __init__(self, shard: Shard, told: Mapping[str, ItemIn]) -> None:
        self._shard, self._told = shard, told
        most = max(FEWEST_MASKS, MASK_BYTES // max(1, len(shard.item_ids)))
        self.mask_value = lru_cache(maxsize=most)(self._mask_value)

    def mask(self, filters: Filters) -> Mask:
        """The items that have, of every key, one of its values; of an unknown key or value there are none."""
        found = np.ones(len(self._shard.item_ids), dtype=bool)
        for key, values in filters:
            found &= np.logical_or.reduce([self.mask_value(key, value) for value in values])
        return found

    def of(self, item: str) -> ItemIn | None:
        """What is known of an item; None for one outside the catalogue of which nobody has said anything."""
        row, told = self._shard.item_row(item), self._told.get(item)
        if row is None:
            return told
        said = told or ItemIn(title=None, hidden=False)
        title = self._shard.titles[row] if said.title is None and self._shard.titles else said.title
        return said.model_copy(update={"title": title, "attributes": {**self._features_of(row), **said.attributes}})

    def _mask_value(self, key: str, value: str) -> Mask:
        """The items (N,) with this value of a key, not to be written to."""
        found, asked = self._mask_feature(key, value), _readings(value)
        found[self._index.with_attribute.get(key, [])] = False  # what was said takes the feature's place
        for one in asked:
            found[self._index.with_value.get((key, one), [])] = True
        found.flags.writeable = False
        return found

    def _mask_feature(self, key: str, value: str) -> Mask:
        features = self._shard.features
        if features is None or key not in features.columns:
            return np.zeros(len(self._shard.item_ids), dtype=bool)
        column = features[key]
        kind = str if column.dtype == pl.String else float
        found = np.zeros(len(column), dtype=bool)
        for one in _readings(value):
            if isinstance(one, kind):
                found |= (column == one).fill_null(False).to_numpy()
        return found

    @cached_property
    def _index(self) -> _Index:
        index = _Index(defaultdict(list), defaultdict(list))
        for item, facts in list(self._told.items()):  # one step in the interpreter: more may be told meanwhile
            if (row := self._shard.item_row(item)) is None:
                continue
            for key in facts.attributes:
                index.with_attribute[key].append(row)
            for pair in _values_of(facts):
                index.with_value[pair].append(row)
        return index

    def _features_of(self, row: int) -> dict[str, Value]:
        features = self._shard.features
        known = {} if features is None else features.row(row, named=True)
        return {key: value for key, value in known.items() if value is not None}


def _values_of(facts: ItemIn) -> Iterator[tuple[str, Value]]:
    yield from ((CATEGORY, one) for one in facts.categories)
    for key, value in facts.attributes.items():
        yield key, str(value).lower() if isinstance(value, bool) else value


def _readings(value: str) -> list[Value]:
    """What a value that is written so can be: text, and a number where it is one."""
    found: list[Value] = [value]
    with suppress(ValueError):
        found.append(float(value))
    return found
