"""Which items a request may be answered with: filters, hidden items, items that a user has met."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from scipy import sparse

from client_service.data import Shard
from client_service.event_log.overlay import Overlay
from client_service.models.ranker import Rows
from client_service.serving.recent_lists import ListKey
from client_service.serving.requests import ListRequest, Mask
from shared.errors import Fault, ProtocolError

EXPECTED: Final = r"filter: expected KEY:VALUE or KEY:VALUE|VALUE, with \ before a :, | or \ that belongs to one"
MOST_FILTERS, LONGEST_FILTER, MOST_VALUES = 20, 2000, 100
KEY: Final = re.compile(r"((?:[^:\\]|\\.)+):(.+)", re.DOTALL)
VALUE: Final = re.compile(r"((?:[^|\\]|\\.)+)(\||$)", re.DOTALL)
ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def parse_filters(filters: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each key with its values. ProtocolError for what has another form; it does not quote what came."""
    return tuple(_parse_filter(one) for one in filters)


def _parse_filter(text: str) -> tuple[str, tuple[str, ...]]:
    parted = KEY.fullmatch(text)
    if parted is None:
        raise _wrong_form(f"{EXPECTED}, got another form")
    values, place, rest = [], 0, parted[2]
    while place < len(rest) or rest.endswith("|"):
        found = VALUE.match(rest, place)
        if found is None:
            raise _wrong_form(f"{EXPECTED}, got a value that is empty or ends in \\")
        values.append(_unescape(found[1]))
        place = found.end()
        if not found[2]:
            break
    if len(values) > MOST_VALUES:
        told = f"filter: expected at most {MOST_VALUES} values of a key, got {len(values)}"
        raise ProtocolError(told, faults=(Fault("out-of-range", "filter", told),))
    return _unescape(parted[1]), tuple(dict.fromkeys(values))


def _wrong_form(told: str) -> ProtocolError:
    return ProtocolError(told, faults=(Fault("wrong-form", "filter", told),))


def _unescape(text: str) -> str:
    return unicodedata.normalize("NFC", ESCAPED.sub(r"\1", text))


class Exclusions:
    """Masks over one shard's catalogue."""

    def __init__(self, shard: Shard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def rows(self, items: Iterable[str]) -> tuple[Rows, int]:
        """Rows of the known items, each once, and how many are unknown."""
        found = [self._shard.item_row(item) for item in items]
        known = np.unique(np.array([row for row in found if row is not None], dtype=np.int64))
        return known, sum(row is None for row in found)

    def forbid(self, allow: Iterable[str] | None, exclude: Sequence[str], filters: Sequence[str]) -> Mask | None:
        """What a request's lists and filters forbid. ProtocolError for a filter of another form."""
        if allow is None and not exclude and not filters:
            return None
        forbidden = np.zeros(len(self._shard.item_ids), dtype=bool)
        if filters:
            forbidden |= ~self._overlay.facts.mask(parse_filters(filters))
        if allow is not None:
            others = np.ones_like(forbidden)
            others[self.rows(allow)[0]] = False
            forbidden |= others
        forbidden[self.rows(exclude)[0]] = True
        return forbidden if forbidden.any() else None

    def forbidden(self, limits: ListRequest) -> Mask:
        """Those of the request, and those that are hidden."""
        forbidden, hidden = limits.forbidden, self._overlay.hidden
        if forbidden is None:
            return np.zeros(len(self._shard.item_ids), dtype=bool) if hidden is None else hidden.copy()
        return forbidden.copy() if hidden is None else forbidden | hidden

    def of_basket(self, rows: Rows, limits: ListRequest) -> Mask:
        """Forbidden items, and those of a basket."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[rows] = True
        return excluded

    def known_items(self, asked: ListKey) -> Rows:
        """Rows of all items that the shard says a user has met: liked, in whichever split, or not."""
        return asked.met if asked.row is None else items_of_row(self._shard.known_pairs, asked.row)

    def of_user(self, asked: ListKey, limits: ListRequest) -> Mask:
        """Forbidden items, and those that the user has met."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[self.known_items(asked)] = True
            if asked.since is not None:
                excluded[asked.since.seen] = True
        return excluded

    def forbid_met(self, asked: ListKey, limits: ListRequest) -> ListRequest:
        """With what the user has met among the forbidden items: his basket holds the training items alone."""
        if not limits.exclude_seen or (asked.since is None and not len(self.known_items(asked))):
            return limits
        return replace(limits, forbidden=self.of_user(asked, limits))


def items_of_row(matrix: sparse.csr_array, row: int | None) -> Rows:
    """The items of a user in a matrix, ascending; none of somebody who is in no row."""
    if row is None:
        return np.zeros(0, dtype=np.int64)
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)
