"""Click sessions as arrays: how clicks become sessions, and which are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from client_service.data.prefixes import Int64, Prefixes, list_prefixes
from client_service.data.sessions import TRAIN
from shared.message import Message
from shared.method.settings import validate_settings
from shared.words import count_noun


class SessionRules(Message):
    """Rules for sessions, from `lpsfed partition --rule key=value`."""

    gap_seconds: float = Field(1800.0, gt=0, le=1e9, description="a longer pause between two clicks ends a session")
    shortest: int = Field(2, ge=2, le=200, description="clicks of a session at least")
    longest: int = Field(20, ge=2, le=200, validate_default=True, description="clicks of a session at most")
    support: int = Field(1, ge=1, le=1_000_000, description="training clicks that an item needs, else it is left out")

    @field_validator("longest")
    @classmethod
    def _not_below_the_shortest(cls, longest: int, info: ValidationInfo) -> int:
        if longest < (shortest := info.data.get("shortest", 2)):
            raise ValueError(f"expected shortest = {shortest} or more")
        return longest


USUAL_RULES = SessionRules()


def parse_rules(changes: Mapping[str, Any]) -> SessionRules:
    """Parses session rules; raises SettingsError for one unknown or out of range."""
    return validate_settings(SessionRules, dict(changes))


@dataclass(frozen=True)
class Sessions:
    """Click sessions as arrays: S sessions, K clicks, N items.

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
        """Number of clicks of each session, (S,)."""
        return np.diff(self.starts)

    def select(self, chosen: Int64 | NDArray[np.bool_]) -> Sessions:
        """Selects sessions in this order; items keep their numbers."""
        rows = np.flatnonzero(chosen) if np.asarray(chosen).dtype == bool else np.asarray(chosen)
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(self, clicks=self.clicks[places], starts=starts, splits=self.splits[rows])

    def of_split(self, split: int) -> Sessions:
        """Selects the sessions of one split."""
        return self.select(self.splits == split)

    def examples(self, split: int) -> Prefixes:
        """Returns every prefix of a split's sessions with the click after it."""
        part = self.of_split(split)
        return list_prefixes(part.clicks, part.starts)


def keep_usual_lengths(sessions: Sessions, rules: SessionRules) -> Sessions:
    """Drops sessions that are shorter or longer than the rules allow."""
    short, long = sessions.lengths < rules.shortest, sessions.lengths > rules.longest
    notes = (
        _note_dropped(short, "session", f"of fewer than {count_noun(rules.shortest, 'click')}"),
        _note_dropped(long, "session", f"of more than {count_noun(rules.longest, 'click')}"),
    )
    return _with_notes(sessions.select(~short & ~long), *notes)


def keep_supported(sessions: Sessions, rules: SessionRules) -> Sessions:
    """Drops rare items, and sessions that are then too short.

    Rare: fewer training clicks than `support`.
    """
    owners = np.repeat(np.arange(len(sessions)), sessions.lengths)
    trained = sessions.clicks[sessions.splits[owners] == TRAIN]
    kept = (np.bincount(trained, minlength=len(sessions.items)) >= rules.support)[sessions.clicks]
    lengths = np.bincount(owners[kept], minlength=len(sessions))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    short = lengths < rules.shortest
    needed = count_noun(rules.support, "training click")
    notes = (
        _note_dropped(~kept, "click", f"on items with fewer than {needed}"),
        _note_dropped(short, "session", f"that had then fewer than {count_noun(rules.shortest, 'click')}"),
    )
    found = replace(sessions, clicks=sessions.clicks[kept], starts=starts)
    return _with_notes(found.select(~short), *notes)


def hold_out_last(sessions: Sessions, share: float, split: int) -> Sessions:
    """Moves the last share of the training sessions to another split.

    It is for data without validation sessions. Sessions keep their order.
    """
    train = np.flatnonzero(sessions.splits == TRAIN)
    splits = sessions.splits.copy()
    splits[train[len(train) - round(share * len(train)) :]] = split
    return replace(sessions, splits=splits)


def number_present_items(sessions: Sessions) -> Sessions:
    """Renumbers the items that occur in the sessions, in their order."""
    present, clicks = np.unique(sessions.clicks, return_inverse=True)
    return replace(sessions, clicks=clicks.astype(np.int64), items=tuple(sessions.items[place] for place in present))


def keep_trained_clients(sessions: Sessions, clients: Int64, asked: int) -> tuple[Sessions, Int64]:
    """Drops clients without training sessions; the others are renumbered.

    clients: of each session, (S,). asked: how many clients there should be.
    """
    trained = np.unique(clients[sessions.splits == TRAIN])
    kept, missing = np.isin(clients, trained), asked - len(trained)
    fewer = f"{count_noun(missing, 'client')} of {asked:,} left out, without training sessions" if missing else ""
    dropped = _note_dropped(~kept, "session", "of clients that are left out")
    return _with_notes(sessions.select(kept), fewer, dropped), np.searchsorted(trained, clients[kept])


def _note_dropped(dropped: NDArray[np.bool_], noun: str, which: str) -> str:
    """Describes how many were dropped; empty for none."""
    count = int(np.count_nonzero(dropped))
    return f"{count_noun(count, noun)} {which} dropped" if count else ""


def _with_notes(sessions: Sessions, *notes: str) -> Sessions:
    return replace(sessions, notes=(*sessions.notes, *filter(None, notes)))
