"""Event log of a silo: writes events to the disk first, then changes every answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from client_service.data.shard_head import has_other_lists
from client_service.event_log.database import ErasureReceipt, LoggedInteraction
from client_service.event_log.log_store import KEPT_DAYS, LogStore
from client_service.event_log.messages import (
    ERASURE_FINAL,
    ERASURE_WAITS,
    ErasedOut,
    ErasureOut,
    InteractionsIn,
    InteractionsOut,
    ItemIn,
)
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.runtime.logs import LOGGER
from client_service.runtime.workers import RequestBatcher
from shared.errors import ConflictError, DataError, FederationError, NotFoundError, UnavailableError

BATCH_SIZE = 16  # calls that wait for the disk at once


def _to_datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def describe_receipt(receipt: ErasureReceipt) -> dict[str, Any]:
    """Returns the fields of ErasureOut."""
    done = receipt.done
    times = {"asked_at": _to_datetime(receipt.asked), "done_at": None if done is None else _to_datetime(done)}
    return {"receipt": receipt.receipt, **times, "remains": ERASURE_WAITS if done is None else ERASURE_FINAL}


class LogOverlay(Protocol):
    """Changes of answers by an event log; see `Overlay`, and `NodeOverlay` of nodes."""

    @property
    def least_rating(self) -> float: ...
    @property
    def shard_digest(self) -> str: ...
    def follow(self) -> None: ...
    def reload(self) -> None: ...
    def attach_store(self, store: Any) -> None: ...
    def contains(self, user_or_node: str) -> bool: ...


Changes = TypeVar("Changes", bound=LogOverlay)
Store = TypeVar("Store", bound=LogStore)


class SiloLog(Generic[Store, Changes]):
    """Store and overlay of one silo, changed together.

    Methods that are not coroutines wait for the disk: never call them in an event loop. folder: of the shard, which
    another process may have rewritten. is_replaced: tells whether the folder has a shard of another digest.
    """

    def __init__(self, store: Store, overlay: Changes, folder: Path, is_replaced: Callable[[Path, str], bool]) -> None:
        self.store, self.overlay, self._folder, self._is_replaced = store, overlay, folder, is_replaced
        self._lock = threading.Lock()
        self.on_erasure: Callable[[], None] = lambda: None  # called when an erasure waits for a refresh

    @property
    def least_rating(self) -> float:
        """Smallest positive rating."""
        return self.overlay.least_rating

    def follow(self) -> None:
        """Reads what other processes have written to the log."""
        with self._lock:
            self.overlay.follow()

    def erase(self, user_or_node: str) -> tuple[int, ErasureReceipt]:
        """Erases a user or a node, which is unknown from the next answer on.

        Answers and log change at once, the rest with a refresh. Returns how many rows the log had, and the receipt.
        """
        with self._lock:
            known = self._may_contain(user_or_node)
            gone, given = self.store.erasures.erase_user(user_or_node, known=known)
            self.overlay.reload()
        self._compact_log()
        receipt = self.store.erasures.read_receipt(given.receipt) or given
        if receipt.done is None:
            self.on_erasure()
        return gone, receipt

    def _may_contain(self, user_or_node: str) -> bool:
        """Checks if the shard may have a user or node.

        True if the shard was rewritten since it was loaded.
        """
        if self.overlay.contains(user_or_node):
            return True
        try:
            return self._is_replaced(self._folder, self.overlay.shard_digest)
        except DataError:
            return True

    def _compact_log(self) -> None:
        """Compacts the log after an erasure.

        Where the disk does not allow it now, a refresh tries again: the erasure is valid all the same.
        """
        try:
            self.store.erasures.complete_unknown()
        except UnavailableError as error:
            LOGGER.warning("erasure_not_settled", reason=str(error))

    def read_erasure(self, receipt: str) -> ErasureOut:
        """Returns the state of an erasure by its receipt.

        Raises NotFoundError for an unknown receipt, and for one that was deleted.
        """
        found = self.store.erasures.read_receipt(receipt)
        if found is None:
            raise NotFoundError(f"expected the receipt of an erasure of the last {KEPT_DAYS} days, got another")
        return ErasureOut(**describe_receipt(found))

    def switch_overlay(self, overlay: Changes, publish: Callable[[], None]) -> None:
        """Switches answers to the overlay of another shard.

        `publish` puts the new answers in place. Writes to the log are blocked meanwhile, so that no answer lacks an
        event.
        """
        with self._lock:
            overlay.attach_store(self.store)
            publish()
            self.overlay = overlay

    def delete_absorbed(self, batch: Any, shard: str, kept: Sequence[Any]) -> None:
        """Deletes all events that a shard has absorbed from the log.

        shard: its digest.
        """
        with self._lock:
            self.store.delete_absorbed(batch, shard, kept)
            self.overlay.reload()

    def close(self) -> None:
        self.store.close()


class EventLog(SiloLog[EventStore, Overlay]):
    """Event log of users and items."""

    def __init__(self, store: EventStore, overlay: Overlay, folder: Path) -> None:
        super().__init__(store, overlay, folder, has_other_lists)
        self._batches = RequestBatcher(self._store_interactions, BATCH_SIZE)
        self._facts = RequestBatcher(self._store_facts, BATCH_SIZE)

    async def add_interactions(self, message: InteractionsIn) -> InteractionsOut:
        """Stores interactions: once this returns, they are on the disk and in the next answer."""
        return await self._batches.ask(message)

    async def put_item(self, item: str, facts: ItemIn) -> ItemIn:
        """Stores the facts of an item, which hold from the next answer on."""
        return await self._facts.ask((item, facts))

    def _store_interactions(self, messages: Sequence[InteractionsIn]) -> list[InteractionsOut | FederationError]:
        with self._lock:
            found = self.store.append_each([one.interactions for one in messages])
            new = [one for batch in found if not isinstance(batch, ConflictError) for one in batch]
            if new and new[0].sequence == self.overlay.last_sequence + 1:
                self.overlay.add_interactions(new)
            else:  # other processes have written in between, or the shard has absorbed all earlier interactions
                self.overlay.follow()
            return [self._describe(*one) for one in zip(messages, found, strict=True)]

    def _describe(
        self, message: InteractionsIn, new: list[LoggedInteraction] | ConflictError
    ) -> InteractionsOut | FederationError:
        if isinstance(new, ConflictError):
            return new
        unknown, repeated = self.overlay.count_unknown(new), len(message.interactions) - len(new)
        return InteractionsOut(accepted=len(new), repeated=repeated, unknown_items=unknown)

    def _store_facts(self, items: Sequence[tuple[str, ItemIn]]) -> list[ItemIn | FederationError]:
        with self._lock:
            found = self.store.put_each(items)
            taken = {item: facts for (item, facts), one in zip(items, found, strict=True) if isinstance(one, int)}
            numbers = [one for one in found if isinstance(one, int)]
            if numbers and numbers[0] == self.overlay.items_changed + 1:
                self.overlay.update_items(numbers[-1], taken)
            elif numbers:  # other processes have changed items in between
                self.overlay.follow()
            return [facts if isinstance(one, int) else one for (_, facts), one in zip(items, found, strict=True)]

    def erase_user(self, user: str) -> ErasedOut:
        """Erases a user, who is unknown from the next answer on."""
        gone, receipt = self.erase(user)
        return ErasedOut(interactions=gone, **describe_receipt(receipt))


class LogSettings(Protocol):
    """Settings of a client or its server that the log needs."""

    @property
    def state_directory(self) -> Path: ...
    @property
    def shard(self) -> Path: ...
    @property
    def most_interactions(self) -> int: ...
    @property
    def most_item_bytes(self) -> int: ...


def open_store(settings: LogSettings) -> EventStore:
    """Opens the file of the log for writing."""
    return EventStore(
        settings.state_directory, most=settings.most_interactions, most_item_bytes=settings.most_item_bytes
    )


def open_log(settings: LogSettings, overlay: Overlay) -> EventLog:
    """Opens the log for writing, and lets the overlay follow it."""
    store = open_store(settings)
    overlay.attach_store(store)
    return EventLog(store, overlay, settings.shard)
