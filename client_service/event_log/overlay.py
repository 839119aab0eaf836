"""Changes of answers by the event log: new positives, seen items, erasures and item metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from client_service.compiled.shard import CompiledShard, Rows
from client_service.data.ratings import choose_least_rating
from client_service.event_log.database import LoggedInteraction, LogSnapshot
from client_service.event_log.item_metadata import ItemMetadata, Mask
from client_service.event_log.messages import ItemIn
from client_service.event_log.store import EventStore

Titles = Sequence[str | None] | None


class ChangedTitles(Sequence[str | None]):
    """The titles of a shard, with those of the rows in `changed` replaced.

    An item without a title has None.
    """

    def __init__(self, given: Titles, changed: Mapping[int, str], count: int) -> None:
        self._given, self.changed, self._count = given, changed, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str | None: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[str | None, ...]: ...
    def __getitem__(self, row: int | slice) -> str | tuple[str | None, ...] | None:
        if isinstance(row, slice):
            return tuple(self[one] for one in range(self._count)[row])
        if (found := self.changed.get(row)) is not None:
            return found
        return None if self._given is None else self._given[row]


class LatestEvent(NamedTuple):
    """Latest interaction of a user with one item.

    time: seconds since 1970, UTC.
    """

    time: int
    positive: bool


@dataclass(frozen=True)
class LatestEvents:
    """Items of one user's later interactions, as ascending rows.

    positive; negative: met but not positive, or no longer; seen: all of them.
    """

    positive: Rows
    negative: Rows
    seen: Rows


@dataclass(frozen=True)
class UserHistory:
    """Latest interaction of one user with each item, by row.

    It never changes: a new one replaces it.
    """

    events: Mapping[int, LatestEvent]

    @cached_property
    def latest(self) -> LatestEvents:
        """Later events of the user; the same object until something new comes."""
        rows = np.array(sorted(self.events), dtype=np.int64)
        positive = np.array([self.events[row].positive for row in rows.tolist()], dtype=bool)
        return LatestEvents(rows[positive], rows[~positive], rows)


HIDDEN = ItemIn(hidden=True)  # facts of most hidden items: one object for all of them saves memory


class Overlay:
    """Changes of answers since the shard was written; empty without a store.

    `least_rating`: smallest positive rating; None: as the shard states. Raises SettingsError if the shard states
    another.
    """

    def __init__(
        self, shard: CompiledShard, store: EventStore | None = None, *, least_rating: float | None = None
    ) -> None:
        self._shard, self._store = shard, store
        self._missed_erasure = False  # an erasure that another shard absorbed before this overlay read it
        self._lock, self._followed = threading.RLock(), -1  # the change number of the log up to which it has read
        self.least_rating = choose_least_rating(least_rating, shard.rating)
        self._later: dict[str, UserHistory] = {}
        self._snapshot, self._last, self._base = LogSnapshot(), 0, 0
        self._items: dict[str, ItemIn] = {}
        self._item_changes: dict[str, ItemIn] = {}
        self._met_outside: dict[str, frozenset[str]] = {}
        self._counted = frozenset[bytes](), 0  # erased users, and how many of them have no row in the shard
        self.hidden: Mask | None = None
        self.titles: Titles = shard.titles
        self.facts = ItemMetadata(shard, self._items)
        if store is not None:
            self.attach_store(store)

    def latest_events(self, user: str) -> LatestEvents | None:
        """Returns a user's events since the shard; None if they change no answer.

        The same object is returned until more events of the user come.
        """
        later = self._later.get(user)
        return None if later is None else later.latest

    def user_row(self, user: str) -> int | None:
        """Returns the user's row in the shard; None for an unknown or an erased user."""
        row = self._shard.user_row(user)
        return None if row is not None and self._is_erased(user) else row

    def met_rows(self, user: str) -> Rows:
        """Returns rows of the items in a user's met events, which are not positive.

        They are those of the shard; none for an erased user.
        """
        met = self._shard.met_items(user)
        return met[:0] if len(met) and self._is_erased(user) else met

    def met_outside(self, user: str) -> frozenset[str]:
        """Lists the ids of items without a row that a user has interacted with."""
        later = self._met_outside.get(user, frozenset())
        if self._shard.unmet is None or self._is_erased(user):
            return later
        return later | self._shard.find_met_unlisted_items(user)

    @property
    def has_item_changes(self) -> bool:
        """True if applications have posted metadata of an item."""
        return bool(self._items)

    def is_hidden_outside(self, item: str) -> bool:
        """Tells whether an application has hidden an item without a row."""
        facts = self._items.get(item)
        return facts is not None and facts.hidden

    def take_item_changes(self) -> dict[str, ItemIn]:
        """Returns the metadata posted since the last call of this method."""
        if not self._item_changes:
            return {}
        with self._lock:
            found, self._item_changes = self._item_changes, {}
            return found

    def contains(self, user: str) -> bool:
        """Tells whether the shard has a user who is not erased since."""
        known = self._shard.user_row(user) is not None or user in self._shard.met_only_users
        return known and not self._is_erased(user)

    @property
    def known_users(self) -> int:
        """Number of users with a row in the shard who are not erased since."""
        snapshot = self._snapshot
        if not snapshot.erased:
            return len(self._shard.user_ids)
        if self._counted[0] is not snapshot.erased:
            self._counted = snapshot.erased, sum(snapshot.erases(user) for user in self._shard.met_only_users)
        return max(0, len(self._shard.user_ids) - len(snapshot.erased) + self._counted[1])

    @property
    def has_erased(self) -> bool:
        """True if a user was erased since the shard was written."""
        return self._missed_erasure or bool(self._snapshot.erased)

    @property
    def shard_digest(self) -> str:
        """Digest of the shard that this overlay changes, with met events."""
        return self._shard.lists_digest

    @property
    def is_absorbed_elsewhere(self) -> bool:
        """True if another shard than this one has absorbed the log."""
        return self._snapshot.shard not in ("", self.shard_digest)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last interaction read, or 0."""
        return self._last

    @property
    def items_changed(self) -> int:
        """Version of the item metadata read so far."""
        return self._snapshot.changed

    def count_unknown(self, interactions: Iterable[LoggedInteraction]) -> int:
        """Counts the interactions with items outside the catalogue."""
        return sum(self._shard.item_row(one.item) is None for one in interactions)

    @property
    def has_store(self) -> bool:
        """True if the overlay follows a log."""
        return self._store is not None

    def attach_store(self, store: EventStore) -> None:
        """Follows a log from now on, whose events are later than the shard."""
        with self._lock:
            self._store, self._later, self._followed = store, {}, store.change_number()
            self._met_outside = {}
            self._read(store)
            self._base, self._missed_erasure = self._snapshot.absorbed, False

    def follow(self) -> None:
        """Reads what any process has written to the log since the last call.

        A call without news costs some microseconds, so every answer about a user begins with one. Any thread may
        call.
        """
        store = self._store
        if store is None or store.change_number() == self._followed:
            return
        with self._lock:
            number = store.change_number()  # before the log is read: a later write gives another number
            if number != self._followed:
                self._follow(store)
                self._followed = number

    def _follow(self, store: EventStore) -> None:
        rewritten, changed = store.count_changes()
        if rewritten != self._snapshot.rewritten:
            return self._read(store)
        if changed != self._snapshot.changed:
            self.update_items(*store.read_items(self._snapshot.changed))
        self.add_interactions(store.interactions(self._last))

    def reload(self) -> None:
        """Reads all interactions again; answers use the old state until it is done.

        If another shard has absorbed the log since, the events read before stay: this shard does not have them.
        """
        assert self._store is not None
        with self._lock:
            self._read(self._store)

    def _read(self, store: EventStore) -> None:
        snapshot, rows = store.read_all(self._snapshot.changed)
        if snapshot.shard == self.shard_digest:
            self._base = snapshot.absorbed
        before: dict[str, UserHistory] = {}
        self._met_outside = self._find_outside({}, rows)
        self._missed_erasure = snapshot.absorbed != self._base and (
            self._missed_erasure or snapshot.forgotten > self._snapshot.rewritten
        )
        if snapshot.absorbed != self._base:
            snapshot = replace(snapshot, erased=snapshot.erased | self._snapshot.erased)
            before = self._keep_histories(snapshot)
        self._later = self._reuse_histories(before | self._merge_interactions(before, rows)[0])
        self._last = rows[-1].sequence if rows else 0
        self._apply_items(snapshot.items)
        self._snapshot = replace(snapshot, items={})

    def _keep_histories(self, snapshot: LogSnapshot) -> dict[str, UserHistory]:
        """Returns the histories of users who are not erased.

        None are kept where an erasure came and was absorbed before it was read.
        """
        if snapshot.forgotten > self._snapshot.rewritten:
            return {}
        return {user: met for user, met in self._later.items() if not snapshot.erases(user)}

    def _reuse_histories(self, later: dict[str, UserHistory]) -> dict[str, UserHistory]:
        """Replaces unchanged histories by the objects known before, which keeps caches valid."""
        known = self._later
        return {user: known[user] if known.get(user) == met else met for user, met in later.items()}

    def update_items(self, changed: int, items: Mapping[str, ItemIn]) -> None:
        """Applies item metadata of the store.

        changed: version of the metadata in the store.
        """
        with self._lock:
            self._snapshot = replace(self._snapshot, changed=changed)
            self._apply_items(items)

    def add_interactions(self, interactions: Sequence[LoggedInteraction]) -> int:
        """Applies stored interactions, and counts those with items outside the catalogue."""
        if not interactions:
            return 0
        with self._lock:
            self._last = max(self._last, interactions[-1].sequence)
            later, unknown = self._merge_interactions(self._later, interactions)
            self._later.update(later)
            if unknown:
                self._met_outside.update(self._find_outside(self._met_outside, interactions))
            return unknown

    def _find_outside(
        self, before: Mapping[str, frozenset[str]], interactions: Iterable[LoggedInteraction]
    ) -> dict[str, frozenset[str]]:
        """Finds the items outside the catalogue of each user's events."""
        found: dict[str, set[str]] = {}
        for one in interactions:
            if self._shard.item_row(one.item) is None:
                found.setdefault(one.user, set()).add(one.item)
        return {user: frozenset(items) | before.get(user, frozenset()) for user, items in found.items()}

    def _merge_interactions(
        self, before: Mapping[str, UserHistory], interactions: Iterable[LoggedInteraction]
    ) -> tuple[dict[str, UserHistory], int]:
        """Merges interactions into histories, and counts those outside the catalogue.

        Returns the histories of the users concerned. Of two interactions with one item the later one counts, and of
        equal times the one that came last.
        """
        found: dict[str, dict[int, LatestEvent]] = {}
        unknown = 0
        for one in interactions:
            if (row := self._shard.item_row(one.item)) is None:
                unknown += 1
                continue
            event = LatestEvent(one.time, one.rating is None or one.rating >= self.least_rating)
            if self._is_outdated(one.user, row, event):
                continue
            if (met := found.get(one.user)) is None:
                known = before.get(one.user)
                met = found[one.user] = {} if known is None else dict(known.events)
            if row not in met or met[row].time <= one.time:
                met[row] = event
        return {user: UserHistory(met) for user, met in found.items()}, unknown

    def _is_outdated(self, user: str, row: int, event: LatestEvent) -> bool:
        """Tells whether the shard has a later event that contradicts this one."""
        if event.positive:
            known = self._shard.met_time(user, row)
        else:
            place = self._shard.user_row(user)
            known = None if place is None else self._shard.positive_time(place, row)
        return known is not None and known > event.time

    def _is_erased(self, user: str) -> bool:
        """Tells whether a user counts as erased.

        Where another shard absorbed an erasure before this overlay read it, the erased user cannot be identified: all
        users count as erased until the new shard is in place.
        """
        return self._missed_erasure or self._snapshot.erases(user)

    def _apply_items(self, items: Mapping[str, ItemIn]) -> None:
        """Replaces the metadata of these items."""
        if not items:
            return
        self._items.update({item: HIDDEN if facts == HIDDEN else facts for item, facts in items.items()})
        self._item_changes.update(items)
        self.facts = ItemMetadata(self._shard, self._items)
        rows = {row: facts for item, facts in items.items() if (row := self._shard.item_row(item)) is not None}
        self._hide(rows)
        self._retitle(rows)

    def _hide(self, posted: Mapping[int, ItemIn]) -> None:
        before = np.zeros(len(self._shard.item_ids), dtype=bool) if self.hidden is None else self.hidden
        hidden = before.copy()
        hidden[list(posted)] = [facts.hidden for facts in posted.values()]
        if (hidden != before).any():  # an unchanged object keeps the caches of its readers valid
            self.hidden = hidden if hidden.any() else None

    def _retitle(self, posted: Mapping[int, ItemIn]) -> None:
        before: Mapping[int, str] = self.titles.changed if isinstance(self.titles, ChangedTitles) else {}
        given = self._shard.titles
        now = dict(before)
        for row, facts in posted.items():
            now.pop(row, None)
            if facts.title is not None and (given is None or given[row] != facts.title):
                now[row] = facts.title
        if now != before:  # an unchanged object keeps the caches of its readers valid
            self.titles = ChangedTitles(given, now, len(self._shard.item_ids)) if now else given
