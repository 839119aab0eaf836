"""Posted interactions, item metadata and erasures in the event log's database."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

from pydantic import ValidationError

from client_service.event_log.database import (
    AbsorbedBatch,
    EventDatabase,
    LoggedInteraction,
    LogSnapshot,
    hash_event,
)
from client_service.event_log.log_store import LogStore, record_absorbed
from client_service.event_log.messages import InteractionIn, ItemIn, seconds_of
from shared.errors import ConflictError, DataError, FederationError, TooLargeError

MOST = 1_000_000  # interactions: some 400 MB of memory
BYTES_OF_INTERACTION = 128  # of both ids; two UUIDs have 72. Times `most`: limit of all interactions together
LEAST_ID_BYTES = 1 << 20
LONGEST_FACTS = 16 << 10  # bytes of the facts of one item
MOST_ITEM_BYTES = 64 << 20  # of all items together: their ids, their facts, and BYTES_BESIDE each
BYTES_BESIDE = 400  # of memory that an item takes besides its text
ITEM_BYTES = f"length(CAST(item AS BLOB)) + length(CAST(facts AS BLOB)) + {BYTES_BESIDE}"
ID_BYTES = "length(CAST(user AS BLOB)) + length(CAST(item AS BLOB))"
REMEMBERED_SECONDS = 30 * 86_400  # for which the id of an event is known again, however often the log was absorbed
COLUMNS = "sequence, user, item, time, rating"


class EventStore(LogStore):
    """Store of interactions and item metadata on the disk.

    most: largest number of interactions, of items, and of remembered event ids. most_item_bytes: largest size of all
    items together. writing False: for a process that only reads. The log's content is kept in memory too, so that it
    is bounded in bytes.
    """

    def __init__(
        self, folder: Path, *, most: int = MOST, most_item_bytes: int = MOST_ITEM_BYTES, writing: bool = True
    ) -> None:
        super().__init__(folder, _remove_user, writing=writing)
        self._most = most
        self._most_item_bytes, self._item_bytes = most_item_bytes, _CachedSum(ITEM_BYTES, "items", "changed")
        self._id_bytes = _CachedSum(ID_BYTES, "interactions", "last")

    @property
    def kept_capacity(self) -> int:
        """Number of interactions that may stay once a shard has absorbed the log.

        The rest is for new ones.
        """
        return self._most // 2

    def append(self, interactions: Sequence[InteractionIn]) -> list[LoggedInteraction]:
        """Stores the interactions whose event id is new, durably.

        Raises ConflictError if the log would hold too many.
        """
        (found,) = self.append_each([interactions])
        if isinstance(found, ConflictError):
            raise found
        return found

    def append_each(self, batches: Sequence[Sequence[InteractionIn]]) -> list[list[LoggedInteraction] | ConflictError]:
        """Stores batches, all durable at once, and returns the new interactions of each.

        A batch without room gives a ConflictError, and the others are stored.
        """
        now = time.time()
        with self._id_bytes.writing(self._database) as rows:
            return [self._append(rows, batch, now) for batch in batches]

    def _append(
        self, rows: Connection, interactions: Sequence[InteractionIn], now: float
    ) -> list[LoggedInteraction] | ConflictError:
        key, last, held = rows.execute("SELECT key, last, held FROM place").fetchone()
        new = _drop_repeated(rows, interactions, key)
        if held + len(new) > self._most:
            words = f"expected at most {self._most} interactions since the shard was written, there are {held}"
            return ConflictError(f"{words}: let the shard absorb them")
        size = sum(len(one.user.encode()) + len(one.item.encode()) for one in new.values())
        most = max(LEAST_ID_BYTES, self._most * BYTES_OF_INTERACTION)
        if new and not self._id_bytes.has_room(rows, size, most):
            words = f"expected ids of at most {most} bytes together since the shard was written"
            return ConflictError(f"{words}, got more: let the shard absorb them, or use shorter ids")
        self._id_bytes.add(size)
        logged = [
            LoggedInteraction(last + place, one.user, one.item, _choose_time(one, now), one.rating)
            for place, one in enumerate(new.values(), 1)
        ]
        marks = ((mark, one.sequence, int(now)) for mark, one in zip(new, logged, strict=True))
        rows.executemany("INSERT INTO accepted VALUES (?, ?, ?)", marks)
        _insert(rows, logged)
        rows.execute("UPDATE place SET last = last + ?, held = held + ?", [len(new), len(new)])
        return logged

    def interactions(self, after: int = 0) -> list[LoggedInteraction]:
        """Lists interactions after a sequence number, in order."""
        with self._database.reading() as rows:
            return _select(rows, after)

    def read_all(self, changed: int = -1) -> tuple[LogSnapshot, list[LoggedInteraction]]:
        """Reads a snapshot and all interactions of one moment.

        changed: only items of later versions are read.
        """
        with self._database.reading() as rows:
            return self._read_snapshot(rows, changed), _select(rows, 0)

    def read_items(self, after: int) -> tuple[int, dict[str, ItemIn]]:
        """Reads the version of the items, and those changed after a version."""
        with self._database.reading() as rows:
            (changed,) = rows.execute("SELECT changed FROM place").fetchone()
            return changed, self._read_items(rows, after)

    def begin_merge(self) -> AbsorbedBatch:
        """Reads all that a shard is to absorb.

        From now on the shard may have it: later erasures must reach the shard too.
        """
        with self._database.transaction() as rows:
            rows.execute("UPDATE place SET handed = last")
            (upto,) = rows.execute("SELECT last FROM place").fetchone()
            return AbsorbedBatch(_select(rows, 0), self._read_snapshot(rows), upto)

    def delete_absorbed(self, batch: AbsorbedBatch, shard: str, kept: Iterable[int]) -> None:
        """Deletes all events that a shard has absorbed.

        shard: its digest. Later posts stay, and so do the interactions of the sequence numbers `kept`.
        """
        upto, oldest = batch.upto, int(time.time()) - REMEMBERED_SECONDS
        with self._database.transaction() as rows:
            rows.execute("CREATE TEMP TABLE IF NOT EXISTS kept (sequence INTEGER PRIMARY KEY)")
            rows.execute("DELETE FROM kept")
            rows.executemany("INSERT INTO kept VALUES (?)", ((number,) for number in kept))
            rows.execute("DELETE FROM interactions WHERE sequence <= ? AND sequence NOT IN kept", [upto])
            rows.execute("DELETE FROM accepted WHERE at < ?", [oldest])
            rows.execute("DELETE FROM accepted WHERE sequence <= (SELECT last FROM place) - ?", [self._most])
            rows.execute("UPDATE place SET held = (SELECT count(*) FROM interactions)")
            record_absorbed(rows, upto, batch.snapshot.rewritten, shard)

    def put_item(self, item: str, facts: ItemIn) -> int:
        """Replaces the metadata of an item, and returns the new version of the items.

        Raises ConflictError if the log would hold too many items or bytes, TooLargeError for too much of one item.
        """
        (found,) = self.put_each([(item, facts)])
        if isinstance(found, FederationError):
            raise found
        return found

    def put_each(self, items: Sequence[tuple[str, ItemIn]]) -> list[int | FederationError]:
        """Stores metadata of several items, all durable at once."""
        with self._item_bytes.writing(self._database) as rows:
            return [self._put_item(rows, *one) for one in items]

    def _put_item(self, rows: Connection, item: str, facts: ItemIn) -> int | FederationError:
        text = facts.model_dump_json()
        if (size := len(text.encode())) > LONGEST_FACTS:
            return TooLargeError(f"expected at most {LONGEST_FACTS} bytes of facts of one item, got {size}")
        found = rows.execute(f"SELECT {ITEM_BYTES} FROM items WHERE item = ?", [item]).fetchone()
        count, changed = rows.execute("SELECT told, changed FROM place").fetchone()
        if found is None and count >= self._most:
            return ConflictError(
                f"expected at most {self._most} items in the event log, got one more: raise most_interactions"
            )
        more = len(item.encode()) + size + BYTES_BESIDE - (0 if found is None else found[0])
        if not self._item_bytes.has_room(rows, more, self._most_item_bytes) and more > 0:
            words = f"expected at most {self._most_item_bytes} bytes of facts of all items together, got more"
            return ConflictError(f"{words}: post shorter titles and attributes, or raise most_item_bytes")
        self._item_bytes.add(more)
        rows.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", [item, text, changed + 1])
        rows.execute("UPDATE place SET told = told + ?, changed = changed + 1", [int(found is None)])
        return int(changed) + 1

    def has_new_events(self, count: int, least_rating: float) -> bool:
        """Checks if at least `count` new positives wait to be absorbed."""
        positive = "sequence > (SELECT looked FROM place) AND (rating IS NULL OR rating >= ?)"
        with self._database.reading() as rows:
            some = f"SELECT count(*) FROM (SELECT 1 FROM interactions WHERE {positive} LIMIT ?)"
            (found,) = rows.execute(some, [least_rating, count]).fetchone()
            return bool(found >= count)

    def _read_snapshot(self, rows: Connection, changed: int = -1) -> LogSnapshot:
        marks = frozenset(mark for (mark,) in rows.execute("SELECT mark FROM erased"))
        place = rows.execute("SELECT key, rewritten, absorbed, shard, changed, forgotten FROM place").fetchone()
        return LogSnapshot(self._read_items(rows, changed), marks, *place)

    def _read_items(self, rows: Connection, after: int) -> dict[str, ItemIn]:
        found = rows.execute(
            "SELECT rowid, item, CAST(facts AS BLOB) FROM items WHERE changed > ? ORDER BY rowid", [after]
        )
        return {item: self._read_facts(row, text) for row, item, text in found}

    def _read_facts(self, row: int, text: bytes) -> ItemIn:
        """Parses the metadata of a row.

        Raises DataError, without the content, for a damaged row.
        """
        try:
            return ItemIn.model_validate_json(text)
        except ValidationError:
            expected = f"expected facts of an item in row {row} of the table of items"
            raise DataError(f"{self.path}: {expected}, got something else") from None


class _CachedSum:
    """A sum over the rows of a table, kept in memory.

    It is computed once and updated with each addition of this process. After an addition of another process it is
    computed anew. counter: the column of the table `place` that every process increases when it adds.
    """

    def __init__(self, expression: str, table: str, counter: str) -> None:
        self._query = f"SELECT coalesce(sum({expression}), 0) FROM {table}"
        self._counter, self._counted = f"SELECT {counter} FROM place", -1
        self._known: int | None = None
        self._rewritten = -1

    def has_room(self, rows: Connection, more: int, most: int) -> bool:
        """Tells whether the sum plus `more` stays within `most`.

        After rows were deleted the known sum is too large: it is computed again before anything is refused.
        """
        (rewritten,) = rows.execute("SELECT rewritten FROM place").fetchone()
        if self._known is None or (self._known + more > most and self._rewritten != rewritten):
            (self._known,) = rows.execute(self._query).fetchone()
            self._rewritten = rewritten
        return self._known + more <= most

    def add(self, size: int) -> None:
        """Adds a size that is about to be written."""
        if self._known is not None:
            self._known += size

    @contextmanager
    def writing(self, database: EventDatabase) -> Iterator[Connection]:
        """Opens a transaction that writes to the table; a failure discards the sum."""
        try:
            with database.transaction() as rows:
                if self._count(rows) != self._counted:
                    self._known = None
                yield rows
                self._counted = self._count(rows)
        except BaseException:
            self._known = None
            raise

    def _count(self, rows: Connection) -> int:
        (found,) = rows.execute(self._counter).fetchone()
        return int(found)


def _select(rows: Connection, after: int) -> list[LoggedInteraction]:
    found = rows.execute(f"SELECT {COLUMNS} FROM interactions WHERE sequence > ? ORDER BY sequence", [after])
    return [LoggedInteraction(*row) for row in found]


def _insert(rows: Connection, logged: Iterable[LoggedInteraction]) -> None:
    values = ((one.sequence, one.user, one.item, one.time, one.rating) for one in logged)
    rows.executemany(f"INSERT INTO interactions ({COLUMNS}) VALUES (?, ?, ?, ?, ?)", values)


def _drop_repeated(rows: Connection, interactions: Iterable[InteractionIn], key: bytes) -> dict[bytes, InteractionIn]:
    """Returns the interactions with a new event id, by their marks.

    Of several with one id the first counts.
    """
    new: dict[bytes, InteractionIn] = {}
    for one in interactions:
        new.setdefault(hash_event(one.event, key), one)
    known = rows.execute(f"SELECT event FROM accepted WHERE event IN ({', '.join('?' * len(new))})", list(new))
    for (mark,) in known.fetchall():
        del new[mark]
    return new


def _choose_time(one: InteractionIn, now: float) -> int:
    return int(now) if one.time is None else seconds_of(one.time)


def _remove_user(rows: Connection, user: str) -> tuple[int, bool]:
    """Deletes a user's interactions.

    Returns how many, and whether some were read for a shard that is being written.
    """
    (handed,) = rows.execute("SELECT handed FROM place").fetchone()
    (first,) = rows.execute("SELECT min(sequence) FROM interactions WHERE user = ?", [user]).fetchone()
    gone = rows.execute("DELETE FROM interactions WHERE user = ?", [user]).rowcount
    rows.execute("UPDATE place SET held = held - ?", [gone])
    return gone, first is not None and first <= handed
