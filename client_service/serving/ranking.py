"""Parses list requests, masks forbidden items, and ranks the rest."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.model import CompiledModel
from client_service.compiled.shard import CompiledShard, Rows
from client_service.event_log.overlay import LatestEvents, Overlay
from shared.errors import Fault, ProtocolError
from shared.method.parameters import Float32

DEEPEST = 1000  # items down to which a list can be asked for
MOST_LISTED = 100_000  # items of all lists of one answer together: some 60 MB while it is written
POOL = 200  # best items that are put into another order by mmr and freshness: as many as a list holds

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ListRequest:
    """Options of a request for a list of items.

    k: how many items. exclude_seen: leave out seen items. forbidden: mask (N,) of items that may not be answered.
    offset: how many of the best come before the first that is answered. mmr, freshness: weights in [0, 1] of being
    unlike the items before, and of being new; with either the best POOL items are put into another order. explain: say
    which of the user's items count most for each. raw: the model's own score instead of the relevance. new: how many
    places are reserved for new items; None: one where there are new items. only_new: list new items alone. allowed,
    excluded: ids by which items outside the catalogue are allowed (None: all) and forbidden.
    """

    k: int
    exclude_seen: bool = True
    forbidden: Mask | None = None
    offset: int = 0
    mmr: float = 0.0
    freshness: float = 0.0
    explain: bool = False
    raw: bool = False
    new: int | None = None
    only_new: bool = False
    allowed: AbstractSet[str] | None = None
    excluded: frozenset[str] = frozenset()

    def allows_outside(self, item: str) -> bool:
        """Tells whether an item outside the catalogue may be answered."""
        return (self.allowed is None or item in self.allowed) and item not in self.excluded

    @property
    def new_places(self) -> int:
        """Number of places reserved for new items."""
        return 1 if self.new is None else self.new

    @property
    def rearranged(self) -> bool:
        """Whether the order differs from that by score."""
        return self.mmr > 0.0 or self.freshness > 0.0

    @property
    def depth(self) -> int:
        """Number of the best items that have to be known."""
        return POOL if self.rearranged else self.offset + self.k

    @property
    def costly(self) -> bool:
        """Whether an answer takes more than a look-up, even from a computed list."""
        return self.rearranged or self.explain or self.only_new or self.forbidden is not None

    def require_reachable(self) -> None:
        """Raises ProtocolError for items further down than any list goes."""
        most, where = (POOL, " with mmr or freshness") if self.rearranged else (DEEPEST, "")
        if self.offset + self.k > most:
            message = f"offset + k: expected at most {most}{where}, got {self.offset + self.k}"
            raise ProtocolError(message, faults=(Fault("out-of-range", "offset", message),))


@dataclass(frozen=True)
class Basket:
    """Items of a person who is not in the training graph, and the list request."""

    items: tuple[str, ...]
    limits: ListRequest


class PlacedItem(NamedTuple):
    """A new item at a reserved place of a list."""

    place: int
    item: str
    score: float
    title: str | None


class ListedItems(NamedTuple):
    """The list of a known user, as it was looked up.

    version: the model's. rows, scores: of the list's items. ids, titles: of every row of the catalogue; titles is None
    if there are none. new: the reserved places with their items, in ascending order.
    """

    version: str
    rows: list[int]
    scores: list[float]
    ids: Sequence[str]
    titles: Sequence[str | None] | None
    new: tuple[PlacedItem, ...] = ()

    @property
    def items(self) -> list[tuple[str, float, str | None]]:
        """Id, score and title of each item."""
        titles = self.titles
        return [
            (self.ids[row], score, None if titles is None else titles[row])
            for row, score in zip(self.rows, self.scores, strict=True)
        ]


EXPECTED: Final = r"filter: expected KEY:VALUE or KEY:VALUE|VALUE, with \ before a :, | or \ that belongs to one"
MOST_FILTERS, LONGEST_FILTER, MOST_VALUES = 20, 2000, 100
KEY: Final = re.compile(r"((?:[^:\\]|\\.)+):(.+)", re.DOTALL)
VALUE: Final = re.compile(r"((?:[^|\\]|\\.)+)(\||$)", re.DOTALL)
ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def parse_filters(filters: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Parses each filter into its key and values.

    Raises ProtocolError for another form; the message does not quote the filter.
    """
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
        message = f"filter: expected at most {MOST_VALUES} values of a key, got {len(values)}"
        raise ProtocolError(message, faults=(Fault("out-of-range", "filter", message),))
    return _unescape(parted[1]), tuple(dict.fromkeys(values))


def _wrong_form(message: str) -> ProtocolError:
    return ProtocolError(message, faults=(Fault("wrong-form", "filter", message),))


def _unescape(text: str) -> str:
    return unicodedata.normalize("NFC", ESCAPED.sub(r"\1", text))


STEP = 200  # items that are ranked at a time: as many as a list holds
ListedRows = tuple[NDArray[np.integer], Float32]
"""Rows of items, best first, and their scores."""


NO_ROWS: Rows = np.zeros(0, dtype=np.int64)
NO_NAMES: Final = frozenset[str]()
NOTHING_SEEN: Final = frozenset[int]()


class ListKey(NamedTuple):
    """State of a user at one moment: row in the shard, and later events.

    row, latest: None for neither. by_row: the user's list follows from the row, else from the basket of all positive
    items. hidden: items (N,) that are hidden from all users. met: rows of the items that the shard knows for a user
    without a row.
    """

    user: str
    row: int | None
    latest: LatestEvents | None
    by_row: bool
    hidden: Mask | None
    met: Rows


class UserFacts(NamedTuple):
    """Facts about a user by which new items are chosen.

    basket: rows of the positive items; empty for an unknown user. met, names: rows and ids of the items that the list
    leaves out.
    """

    basket: Rows
    met: tuple[Rows, ...]
    names: frozenset[str]


class NewItemQuery:
    """User or basket that new items are chosen for.

    hidden: mask (N,). read: reads what is known of the user, on demand. listed: the row of the user whose computed
    list of cold items holds; None: compute one. seen: rows that the list does not leave out.
    """

    def __init__(
        self,
        hidden: Mask | None,
        read: Callable[[], UserFacts],
        listed: int | None = None,
        seen: frozenset[int] = NOTHING_SEEN,
    ) -> None:
        self.hidden, self._read, self.listed, self.seen = hidden, read, listed, seen

    @cached_property
    def facts(self) -> UserFacts:
        """Facts about the user or basket, read once."""
        return self._read()


class ListStart(NamedTuple):
    """The beginning of a list, best first, with scores.

    whole: no item comes after it.
    """

    items: NDArray[np.integer]
    scores: Float32
    whole: bool

    def first(self, k: int) -> ListedRows | None:
        """Returns the k best, or None if they reach beyond this start.

        A whole list gives all it has, even where these are fewer than k.
        """
        return (self.items[:k], self.scores[:k]) if len(self.items) >= k or self.whole else None


def start_list(items: NDArray[np.integer], scores: Float32, forbidden: Mask | None) -> ListStart:
    """Takes forbidden items (N,) out of a list.

    items: best first, -1 if there are no more.
    """
    whole = bool(items[-1] < 0)  # a -1 at the end: the list holds all items there are
    if forbidden is not None or whole:
        allowed = items >= 0 if forbidden is None else (items >= 0) & ~forbidden[items]
        items, scores = items[allowed], scores[allowed]
    return ListStart(items, scores, whole)


class Exclusions:
    """Masks of forbidden and already known items over one shard's catalogue."""

    def __init__(self, shard: CompiledShard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay

    def rows(self, items: Iterable[str]) -> tuple[Rows, int]:
        """Returns the rows of known items, each once, and the number of unknown ones."""
        found = self._shard.item_ids.rows(items)
        known = np.unique(np.array([row for row in found if row is not None], dtype=np.int64))
        return known, sum(row is None for row in found)

    def forbid(self, allow: Iterable[str] | None, exclude: Sequence[str], filters: Sequence[str]) -> Mask | None:
        """Masks the items that a request's lists and filters forbid.

        Raises ProtocolError for an invalid filter.
        """
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

    def rules_for_unlisted(
        self, allow: Iterable[str] | None, exclude: Sequence[str], filters: Sequence[str]
    ) -> tuple[AbstractSet[str] | None, frozenset[str]]:
        """Returns the allowed ids among items without a row, and the excluded ids.

        None: all are allowed.
        """
        allowed: AbstractSet[str] | None = None if allow is None else frozenset(allow)
        if filters:
            having = self._overlay.facts.find_outside_matches(parse_filters(filters))
            allowed = having if allowed is None else allowed & having
        return allowed, frozenset(exclude)

    def forbidden(self, limits: ListRequest) -> Mask:
        """Masks the items that the request forbids, and hidden ones."""
        forbidden, hidden = limits.forbidden, self._overlay.hidden
        if forbidden is None:
            return np.zeros(len(self._shard.item_ids), dtype=bool) if hidden is None else hidden.copy()
        return forbidden.copy() if hidden is None else forbidden | hidden

    def mask_for_basket(self, rows: Rows, limits: ListRequest) -> Mask:
        """Masks forbidden items, and the items of a basket."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[rows] = True
        return excluded

    def known_items(self, asked: ListKey) -> Rows:
        """Returns the rows of all items that a user has interacted with.

        They count whether positive or not, in any split.
        """
        return asked.met if asked.row is None else self._shard.known_pairs.row(asked.row)

    def mask_for_user(self, asked: ListKey, limits: ListRequest) -> Mask:
        """Masks forbidden items, and the items that the user has interacted with."""
        excluded = self.forbidden(limits)
        if limits.exclude_seen:
            excluded[self.known_items(asked)] = True
            if asked.latest is not None:
                excluded[asked.latest.seen] = True
        return excluded


def history_rows(shard: CompiledShard, overlay: Overlay, user: str) -> Rows:
    """Returns the rows of items positive since the shard was written, then of training items.

    Empty for an unknown user. Validation and test items are left out, because they judge the list.
    """
    row, latest = overlay.user_row(user), overlay.latest_events(user)
    positive = np.zeros(0, dtype=np.int64) if latest is None else latest.positive
    return np.concatenate([positive, np.setdiff1d(recent_basket(shard, row, latest), positive)])


def recent_basket(shard: CompiledShard, row: int | None, latest: LatestEvents | None) -> Rows:
    """Returns the rows of a user's positive items, ascending.

    These are the items of the training row and the positives since. Of each item the latest event counts.
    """
    trained: Rows = np.zeros(0, dtype=np.int64) if row is None else shard.train.row(row)
    return trained if latest is None else np.union1d(np.setdiff1d(trained, latest.negative), latest.positive)


def changes_basket(shard: CompiledShard, row: int, latest: LatestEvents) -> bool:
    """Tells whether later events change a user's positive items.

    Items that were only seen do not matter.
    """
    return len(latest.positive) > 0 or bool(np.isin(latest.negative, shard.train.row(row)).any())


def rank_basket(model: CompiledModel, basket: Rows, excluded: Mask, k: int) -> ListedRows:
    """Ranks the k best items for a basket, or fewer if there are no more.

    excluded: mask (N,) of the items to leave out, overwritten. A list of any length is the beginning of each longer
    one: a model that scores its candidates again is always asked for STEP items.
    """
    items, scores = list[Rows](), list[Float32]()
    while k > 0:
        rows, found = model.rank_basket(basket, excluded, STEP)
        best = rows[: min(k, STEP)]
        allowed = best >= 0
        items.append(best[allowed])
        scores.append(found[: len(best)][allowed])
        if rows[-1] < 0:
            break
        excluded[rows] = True
        k -= STEP
    if len(items) == 1:
        return items[0], scores[0]
    return np.concatenate(items), np.minimum.accumulate(np.concatenate(scores))


def extend_list(model: CompiledModel, begun: ListStart, basket: Rows, excluded: Mask, k: int) -> ListedRows:
    """Extends the list of a known user to the k best items.

    The items of the list come first, the best of all others behind, so that no page repeats or omits an item.
    excluded: mask (N,) of the items to leave out, overwritten.
    """
    excluded[begun.items] = True
    items, scores = rank_basket(model, basket, excluded, k - len(begun.items))
    scores = map_to_list_scores(model, scores)
    if not len(begun.items):
        return items, scores
    scores = np.minimum(scores, begun.scores[-1])
    return np.concatenate([begun.items, items]), np.concatenate([begun.scores, scores])


def map_to_list_scores(model: CompiledModel, scores: Float32) -> Float32:
    """Maps scores of baskets to the list scores of the same relevance."""
    own, listed = model.basket_relevance, model.relevance
    found = (scores.astype(np.float64) * own.slope + (own.intercept - listed.intercept)) / listed.slope
    return found.astype(np.float32)
