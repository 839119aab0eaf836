"""The log of what has happened since the shard was written -> what of it an answer needs, in memory.

A user with later interactions is answered by a basket: the items of the shard and the later ones, folded in with the
served model. Rows are those of the shard's catalogue; of other items nothing can be told before the shard has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from client_service.feedback.facts import ItemFacts, Mask
from client_service.feedback.messages import ItemIn
from client_service.feedback.store import NAME, FeedbackStore, LoggedInteraction, Told, mark_of
from client_service.logs import LOGGER
from client_service.models.ranker import Rows
from client_service.shard import Shard
from shared.errors import DataError, UnavailableError


@dataclass(frozen=True)
class Since:
    """What one user has met since: rows of the items liked, and of all that were seen, each ascending."""

    liked: Rows
    seen: Rows


class Overlay:
    """What is later than the shard; empty without a store. `least_rating`: below it an item is seen, not liked."""

    def __init__(self, shard: Shard, store: FeedbackStore | None = None, *, least_rating: float = 4.0) -> None:
        self._shard, self._store, self._least = shard, store, least_rating
        self._met: dict[str, dict[int, bool]] = {}
        self._told = Told({}, frozenset(), b"", 0, 0)
        self._last = 0
        self.hidden: Mask | None = None
        self.titles: Sequence[str | None] | None = shard.titles
        self.facts = ItemFacts(shard, {})
        if store is not None:
            self.attach_store(store)

    def of(self, user: str) -> Since | None:
        """None for a user of whom nothing has come that could change an answer."""
        met = self._met.get(user)
        if not met:
            return None
        pairs = sorted(met.items())  # one step in the interpreter: a writer does not come between
        liked = np.array([row for row, good in pairs if good], dtype=np.int64)
        return Since(liked, np.array([row for row, _ in pairs], dtype=np.int64))

    def user_row(self, user: str) -> int | None:
        """The user's row in the shard; None for somebody who is not there, or erased since."""
        row = self._shard.user_row(user)
        erased = row is not None and self._told.erased and mark_of(user, self._told.key) in self._told.erased
        return None if erased else row

    @property
    def known_users(self) -> int:
        """How many users the shard has who have not been erased since."""
        return len(self._shard.user_ids) - len(self._told.erased)

    @property
    def has_store(self) -> bool:
        """Is there a log that it follows?"""
        return self._store is not None

    def attach_store(self, store: FeedbackStore) -> None:
        """Follow this log from now on: it is what has happened since this shard was written."""
        self._store = store
        self._read(store, Told({}, frozenset(), b"", 0, store.read_told().absorbed), {})

    def follow(self) -> None:
        """Take up what another process has written since."""
        if self._store is None:
            return
        if self._store.count_rewritten() != self._told.rewritten:
            self.begin_anew()
        else:
            self.add(self._store.interactions(self._last))

    def begin_anew(self) -> None:
        """Read everything; answers see the old until the new is there.

        Where another shard has absorbed the log since, what was known stays: this shard has not got it.
        """
        assert self._store is not None
        self._read(self._store, self._told, self._met)

    def _read(self, store: FeedbackStore, known: Told, before: dict[str, dict[int, bool]]) -> None:
        told, rows = store.read_told(), store.interactions()
        met: dict[str, dict[int, bool]] = {}
        if told.absorbed != known.absorbed:
            met = {user: dict(found) for user, found in before.items()}
            told = replace(told, erased=told.erased | known.erased, absorbed=known.absorbed)
        self._add_to(met, rows)
        self._told, self._met = told, met
        self._last = rows[-1].sequence if rows else 0
        self._show_items(told)

    def put_item(self, item: str, facts: ItemIn) -> None:
        """Take up what the store has of an item."""
        self._told = replace(self._told, items={**self._told.items, item: facts})
        self._show_items(self._told)

    def add(self, interactions: Sequence[LoggedInteraction]) -> int:
        """Take interactions up that the store has; returns how many are of items outside the catalogue."""
        self._last = interactions[-1].sequence if interactions else self._last
        return len(interactions) - self._add_to(self._met, interactions)

    def _add_to(self, met: dict[str, dict[int, bool]], interactions: Iterable[LoggedInteraction]) -> int:
        known = 0
        for one in interactions:
            if (row := self._shard.item_row(one.item)) is not None:
                met.setdefault(one.user, {})[row] = one.rating is None or one.rating >= self._least
                known += 1
        return known

    def _show_items(self, told: Told) -> None:
        self.facts = ItemFacts(self._shard, told.items)
        rows = {row: facts for item, facts in told.items.items() if (row := self._shard.item_row(item)) is not None}
        hidden = np.zeros(len(self._shard.item_ids), dtype=bool)
        hidden[[row for row, facts in rows.items() if facts.hidden]] = True
        self.hidden = hidden if hidden.any() else None
        titled = {row: facts.title for row, facts in rows.items() if facts.title is not None}
        if titled:
            titles = list(self._shard.titles or [None] * len(self._shard.item_ids))
            for row, title in titled.items():
                titles[row] = title
            self.titles = titles
        else:
            self.titles = self._shard.titles


def follow_feedback(folder: Path, most: int, overlay: Overlay) -> None:
    """Take up what the training process has written in `folder`; nothing where it has not begun to."""
    try:
        if overlay.has_store:
            overlay.follow()
        elif (folder / NAME).is_file():
            overlay.attach_store(FeedbackStore(folder, most=most, writing=False))
    except (DataError, UnavailableError) as error:  # it is looked at again the next time
        LOGGER.warning("feedback_not_read", reason=str(error))
