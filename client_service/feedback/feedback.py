"""What applications tell -> the log, durable first, and then every answer."""

from __future__ import annotations

import threading

from client_service.feedback.messages import ErasedOut, InteractionsIn, InteractionsOut, ItemIn
from client_service.feedback.overlay import Overlay
from client_service.feedback.store import FeedbackStore

REMAINS = (
    "the shard and what was trained on it: `lpsfed shard absorb` rewrites the shard without this user, and a restart "
    "then replaces the model"
)


class Feedback:
    """The store and the overlay of one silo, changed together. Its calls wait for the disk: not in an event loop."""

    def __init__(self, store: FeedbackStore, overlay: Overlay) -> None:
        self._store, self.overlay = store, overlay
        self._lock = threading.Lock()

    def take_interactions(self, message: InteractionsIn) -> InteractionsOut:
        """Once this returns they are on the disk, and in the next answer."""
        with self._lock:
            new = self._store.append(message.interactions)
            unknown = self.overlay.add(new)
        return InteractionsOut(accepted=len(new), repeated=len(message.interactions) - len(new), unknown_items=unknown)

    def put_item(self, item: str, facts: ItemIn) -> ItemIn:
        """What is said of an item holds from the next answer on."""
        with self._lock:
            self._store.put_item(item, facts)
            self.overlay.put_item(item, facts)
        return facts

    def erase_user(self, user: str) -> ErasedOut:
        """The log's part of an erasure; the user is unknown from the next answer on."""
        with self._lock:
            known = self.overlay.user_row(user) is not None
            gone = self._store.erase_user(user, marked=known)
            self.overlay.begin_anew()
        return ErasedOut(interactions=gone, remains=REMAINS if known else None)

    def close(self) -> None:
        self._store.close()
