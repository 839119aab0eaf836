"""Metadata of items: masks of the items with a value, and the metadata of each.

An item has the features of its shard, and over them what applications have posted of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.shard import CompiledShard, UnmetItems
from client_service.compiled.texts import FoldedTexts, compose
from client_service.event_log.messages import ItemIn
from shared.errors import Fault, ProtocolError

CATEGORY = "category"  # the key by which an item's categories are asked for
MASK_BYTES, FEWEST_MASKS = 64 << 20, 8  # kept masks together; and how many there are however large the catalogue is
MOST_MASKS = 4096  # however small it is: with each mask its key and value are kept, which are the caller's words
LONGEST_KEY_LIST = 300  # characters of the known keys that an error lists

Mask = NDArray[np.bool_]
Value = str | float
Filters = Iterable[tuple[str, tuple[str, ...]]]
"""Keys, each with the values of which an item must have one."""


class _Index(NamedTuple):
    """Index of posted metadata: all keys, and rows of items by attribute and by value.

    outside: ids of the items outside the catalogue by value.
    """

    keys: frozenset[str]
    with_attribute: dict[str, list[int]]
    with_value: dict[tuple[str, Value], list[int]]
    outside: dict[tuple[str, Value], list[str]]


class ItemMetadata:
    """Metadata of all items at one moment.

    After a change another object takes its place, so that its masks never outlive it. `described`: what applications
    have posted, by the item's id; it may grow meanwhile.
    """

    def __init__(self, shard: CompiledShard, described: Mapping[str, ItemIn]) -> None:
        self._shard, self._described = shard, described
        most = min(MOST_MASKS, max(FEWEST_MASKS, MASK_BYTES // max(1, len(shard.item_ids))))
        self.mask_value = lru_cache(maxsize=most)(self._mask_value)

    def mask(self, filters: Filters) -> Mask:
        """Marks the items that match all filters, (N,).

        An item must have, of every key, one of its values. Raises ProtocolError for a key that no item has, which
        names the known ones.
        """
        found = np.ones(len(self._shard.item_ids), dtype=bool)
        for key, values in filters:
            if key not in self._keys:
                raise _unknown_key(key, self._keys)
            found &= np.logical_or.reduce([self.mask_value(key, value) for value in values])
        return found

    def find_outside_matches(self, filters: Filters) -> AbstractSet[str]:
        """Finds the ids of items without a row that match the filters.

        Such an item has, of every key, one of its values.
        """
        filters = tuple(filters)
        described, unmet = self._find_described(filters), self._shard.unmet
        if unmet is None:
            return described
        return MatchingItems(described, unmet, self._mask_unmet(unmet, filters), self._described)

    def _mask_unmet(self, unmet: UnmetItems, filters: Filters) -> Mask:
        found = np.ones(unmet.count, dtype=bool)
        for key, values in filters:
            feature = unmet.features.get(self._columns.get(key, ""))
            masks = [] if feature is None else [feature.equal_to(one, _read_number(one)) for one in values]
            found &= np.logical_or.reduce(masks) if masks else False
        return found

    def _find_described(self, filters: Filters) -> frozenset[str]:
        found: frozenset[str] | None = None
        for key, values in filters:
            pairs = ((key, one) for value in values for one in _parse_value(value))
            having = frozenset(item for pair in pairs for item in self._index.outside.get(pair, ()))
            found = having if found is None else found & having
        return frozenset() if found is None else found

    def search_outside_titles(self, words: Sequence[str]) -> list[str]:
        """Lists items outside the catalogue whose titles have all of the folded words.

        Returns ids, ascending.
        """
        ids, titles = self._outside_titles
        found = np.logical_and.reduce([titles.find_containing(word) for word in words])
        return [ids[place] for place in np.flatnonzero(found).tolist()]

    @cached_property
    def _outside_titles(self) -> tuple[list[str], FoldedTexts]:
        described = ((item, facts) for item, facts in list(self._described.items()) if facts.title and not facts.hidden)
        titles = sorted((item, facts.title) for item, facts in described if self._shard.find_item(item) is None)
        return [item for item, _ in titles], FoldedTexts.from_texts([title for _, title in titles])

    def describe(self, item: str) -> ItemIn | None:
        """Returns the metadata of an item; None for an unknown item."""
        row, described = self._shard.find_item(item), self._described.get(item)
        if row is None:
            return described
        posted, unmet = described or ItemIn(title=None, hidden=False), self._shard.unmet
        if unmet is not None and row >= unmet.first:
            known, facts = unmet.title_of(row), unmet.facts_of(row)
        else:
            known, facts = (self._shard.titles[row] if self._shard.titles else None), self._features_of(row)
        title = known if posted.title is None else posted.title
        return posted.model_copy(update={"title": title, "attributes": {**facts, **posted.attributes}})

    def _mask_value(self, key: str, value: str) -> Mask:
        """Marks the items with a value of a key, (N,); the mask is read-only."""
        found, readings = self._mask_feature(key, value), _parse_value(value)
        found[self._index.with_attribute.get(key, [])] = False  # what was posted takes the feature's place
        for reading in readings:
            found[self._index.with_value.get((key, reading), [])] = True
        found.flags.writeable = False
        return found

    def _mask_feature(self, key: str, value: str) -> Mask:
        name = self._columns.get(key)
        if name is None:
            return np.zeros(len(self._shard.item_ids), dtype=bool)
        return self._shard.features[name].equal_to(value, _read_number(value))

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Names of the shard's features by their composed form."""
        return {compose(name): name for name in self._shard.features}

    @property
    def _keys(self) -> frozenset[str]:
        """Keys that filters may use."""
        return self._index.keys

    @cached_property
    def _index(self) -> _Index:
        keys, outside = {CATEGORY, *self._columns}, defaultdict[tuple[str, Value], list[str]](list)
        with_attribute, with_value = defaultdict[str, list[int]](list), defaultdict[tuple[str, Value], list[int]](list)
        for item, facts in list(self._described.items()):  # one step in the interpreter: more items may come meanwhile
            keys.update(map(compose, facts.attributes))
            if (row := self._shard.item_row(item)) is None:
                for pair in _values_of(facts):
                    outside[pair].append(item)
                continue
            for key in facts.attributes:
                with_attribute[compose(key)].append(row)
            for pair in _values_of(facts):
                with_value[pair].append(row)
        return _Index(frozenset(keys), with_attribute, with_value, outside)

    def _features_of(self, row: int) -> dict[str, Value]:
        known = ((name, feature.value_at(row)) for name, feature in self._shard.features.items())
        return {name: value for name, value in known if value is not None}


def _values_of(facts: ItemIn) -> Iterator[tuple[str, Value]]:
    yield from ((CATEGORY, compose(one)) for one in facts.categories)
    for key, value in facts.attributes.items():
        posted = str(value).lower() if isinstance(value, bool) else value
        yield compose(key), compose(posted) if isinstance(posted, str) else posted


def _unknown_key(key: str, known: Iterable[str]) -> ProtocolError:
    """Builds the error for an unknown key, which lists the known ones.

    The key itself may be a secret of the caller, and is not repeated.
    """
    names = sorted(known)
    room = np.cumsum([len(name) + 2 for name in names])
    described = names[: max(1, int(np.searchsorted(room, LONGEST_KEY_LIST)))]
    more = f" and {len(names) - len(described)} more" if len(names) > len(described) else ""
    near = "".join(f", likely {one}" for one in get_close_matches(key, names, n=1))
    words = f"filter: expected a known key, got another{near}; known: {', '.join(described)}{more}"
    return ProtocolError(words, faults=(Fault("unknown", "filter", words),))


class MatchingItems(AbstractSet[str]):
    """Ids of the items without a row that match filters.

    Posted items by id, unmet ones by a mask (U,). Posted metadata of an unmet item replace its own.
    """

    def __init__(self, described: frozenset[str], unmet: UnmetItems, mask: Mask, posted: Mapping[str, ItemIn]) -> None:
        self._matching, self._unmet, self._posted = described, unmet, posted
        self._mask = mask.copy()
        replaced = (unmet.row(item) for item in posted if self._is_described(item))
        self._mask[[row - unmet.first for row in replaced if row is not None]] = False
        self._mask[[row - unmet.first for item in described if (row := unmet.row(item)) is not None]] = True

    @classmethod
    def _from_iterable(cls, items: Iterable[str]) -> AbstractSet[str]:  # type: ignore[override]  # of intersections
        return frozenset(items)

    def __contains__(self, item: object) -> bool:
        if item in self._matching:
            return True
        row = self._unmet.row(item) if isinstance(item, str) else None
        return row is not None and bool(self._mask[row - self._unmet.first])

    @property
    def unmet(self) -> Mask:
        """Mask of the unmet items that match, (U,)."""
        return self._mask

    def _is_described(self, item: str) -> bool:
        posted = self._posted.get(item)
        return posted is not None and bool(posted.categories or posted.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._matching.union(self._unmet.ids[place] for place in np.flatnonzero(self._mask).tolist()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _read_number(value: str) -> float | None:
    return next((one for one in _parse_value(value) if isinstance(one, float)), None)


def _parse_value(value: str) -> list[Value]:
    """Lists the readings of a written value: text, and a number where possible."""
    found: list[Value] = [value]
    with suppress(ValueError):
        found.append(float(value))
    return found
