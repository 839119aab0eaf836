"""Click sessions as arrays, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from client_service.sessions.prefixes import Int64, Prefixes, prefixes_of_sessions
from client_service.sessions.shard import TRAIN

SHORTEST, LONGEST = 2, 20  # clicks of a session


@dataclass(frozen=True)
class Sessions:
    """S sessions, K clicks, N items.

    clicks: items as numbers from 0 on, session after session, (K,). starts: where each session begins, and the end of
    the last, (S + 1,). splits: of each session, TRAIN, VALID or TEST, (S,). items: the id of each item. notes: what was
    dropped, and how much.
    """

    name: str
    clicks: Int64
    starts: Int64
    splits: NDArray[np.int8]
    items: Sequence[str]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def lengths(self) -> Int64:
        """Clicks of each session, (S,)."""
        return np.diff(self.starts)

    def select(self, chosen: Int64 | NDArray[np.bool_]) -> Sessions:
        """Some of the sessions, in this order; the items keep their numbers."""
        rows = np.flatnonzero(chosen) if np.asarray(chosen).dtype == bool else np.asarray(chosen)
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, clicks=self.clicks[places], starts=starts, splits=self.splits[rows])

    def of_split(self, split: int) -> Sessions:
        """The sessions of one split."""
        return self.select(self.splits == split)

    def examples(self, split: int) -> Prefixes:
        """Every prefix of a split's sessions with the click after it."""
        part = self.of_split(split)
        return prefixes_of_sessions(part.clicks, part.starts)


def keep_usual_lengths(sessions: Sessions) -> Sessions:
    """Without sessions of fewer than SHORTEST or more than LONGEST clicks."""
    usual = (sessions.lengths >= SHORTEST) & (sessions.lengths <= LONGEST)
    note = f"{np.count_nonzero(~usual):,} sessions of fewer than {SHORTEST} or more than {LONGEST} clicks dropped"
    return replace(sessions.select(usual), notes=(*sessions.notes, *([] if usual.all() else [note])))


def keep_supported(sessions: Sessions, support: int) -> Sessions:
    """Without clicks on items that fewer than `support` training clicks have, and sessions that are then too short."""
    owners = np.repeat(np.arange(len(sessions)), sessions.lengths)
    trained = sessions.clicks[sessions.splits[owners] == TRAIN]
    kept = (np.bincount(trained, minlength=len(sessions.items)) >= support)[sessions.clicks]
    lengths = np.bincount(owners[kept], minlength=len(sessions))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    note = f"{np.count_nonzero(~kept):,} clicks on items with fewer than {support} training clicks dropped"
    notes = (*sessions.notes, *([] if kept.all() else [note]))
    found = replace(sessions, clicks=sessions.clicks[kept], starts=starts, notes=notes)
    return found.select(found.lengths >= SHORTEST)


def hold_out_last(sessions: Sessions, share: float, split: int) -> Sessions:
    """The last share of the training sessions, as they lie, in another split: data that name no validation sessions."""
    train = np.flatnonzero(sessions.splits == TRAIN)
    splits = sessions.splits.copy()
    splits[train[len(train) - round(share * len(train)) :]] = split
    return replace(sessions, splits=splits)


def only_known_items(sessions: Sessions) -> Sessions:
    """The items of training sessions alone, numbered anew: no client could rank another one."""
    return keep_supported_items(keep_supported(sessions, 1))


def keep_supported_items(sessions: Sessions) -> Sessions:
    """The same sessions over the items that occur in them, numbered anew in their order."""
    present, clicks = np.unique(sessions.clicks, return_inverse=True)
    return replace(sessions, clicks=clicks.astype(np.int64), items=tuple(sessions.items[place] for place in present))
