"""What the log of a silo holds, as values: interactions, facts of items, who was erased, and the marks of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from client_service.feedback.messages import ItemIn
from client_service.shard.ids import normalise_id

EVENT_BYTES, USER_BYTES = 16, 32


@dataclass(frozen=True)
class LoggedInteraction:
    """One row. `time`: seconds since 1970, UTC."""

    sequence: int
    user: str
    item: str
    time: int
    rating: float | None


@dataclass(frozen=True)
class Told:
    """All but the interactions, at one moment.

    erased: marks of erased users, made with `key`. rewritten: how often interactions were taken away, after which a
    reader begins anew. forgotten: what it was at the last erasure whose mark has gone again, because the shard has
    forgotten the user. absorbed: how often a shard has absorbed what there was; shard: the digest of the last that did,
    "" before. changed: how often items were told of, -1 where none of it was read; items: those that were told of.
    """

    items: dict[str, ItemIn] = field(default_factory=dict)
    erased: frozenset[bytes] = frozenset()
    key: bytes = b""
    rewritten: int = 0
    absorbed: int = 0
    shard: str = ""
    changed: int = -1
    forgotten: int = 0

    def erases(self, user: str) -> bool:
        """Is this user erased, under this spelling of the id or under its usual one?"""
        marks = {mark_of(one, self.key) for one in (user, normalise_id(user))} if self.erased else set()
        return not marks.isdisjoint(self.erased)


@dataclass(frozen=True)
class HandedOver:
    """What a shard is to absorb: all interactions, and what was told at that moment. `upto`: the last sequence number
    that any interaction had by then."""

    interactions: list[LoggedInteraction]
    told: Told
    upto: int


@dataclass(frozen=True)
class ErasureReceipt:
    """Of an erasure, without the id. `asked`, `done`: seconds since 1970, UTC; None: not yet."""

    receipt: str
    asked: int
    done: int | None


def mark_of(user: str, key: bytes) -> bytes:
    """What stands for an erased user: without the key it tells nothing, with it whether it is somebody."""
    return hashlib.blake2b(user.encode(), key=key, digest_size=USER_BYTES).digest()


def event_mark(event: str, key: bytes) -> bytes:
    """What stands for the id of an event, which may hold a user's: likewise."""
    return hashlib.blake2b(event.encode(), key=key, digest_size=EVENT_BYTES, person=b"event").digest()
