"""What applications tell -> the log, durable first, and then every answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from client_service.feedback.messages import ErasedOut, ErasureOut, InteractionsIn, InteractionsOut, ItemIn
from client_service.feedback.overlay import Overlay
from client_service.feedback.store import ErasureReceipt, FeedbackStore
from shared.errors import NotFoundError

WAITS = (
    "answers do not know the user any more; the shard, what was computed from it and the model follow with a refresh, "
    "which waits for the end of a round at hand"
)
FINAL = (
    "updates that other silos' models have taken in cannot be taken back; what is sent from now on has nothing of the "
    "user"
)


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _say(receipt: ErasureReceipt) -> dict[str, Any]:
    done = receipt.done
    times = {"asked_at": _at(receipt.asked), "done_at": None if done is None else _at(done)}
    return {"receipt": receipt.receipt, **times, "remains": WAITS if done is None else FINAL}


class Feedback:
    """The store and the overlay of one silo, changed together. Its calls wait for the disk: not in an event loop."""

    def __init__(self, store: FeedbackStore, overlay: Overlay) -> None:
        self.store, self.overlay = store, overlay
        self._lock = threading.Lock()
        self.on_erasure: Callable[[], None] = lambda: None  # once one waits for a refresh

    def take_interactions(self, message: InteractionsIn) -> InteractionsOut:
        """Once this returns they are on the disk, and in the next answer."""
        with self._lock:
            new = self.store.append(message.interactions)
            unknown = self.overlay.add(new)
        return InteractionsOut(accepted=len(new), repeated=len(message.interactions) - len(new), unknown_items=unknown)

    def put_item(self, item: str, facts: ItemIn) -> ItemIn:
        """What is said of an item holds from the next answer on."""
        with self._lock:
            self.store.put_item(item, facts)
            self.overlay.put_item(item, facts)
        return facts

    def erase_user(self, user: str) -> ErasedOut:
        """The user is unknown from the next answer on, and gone from the log; the rest follows with a refresh."""
        with self._lock:
            known = self.overlay.user_row(user) is not None
            gone, receipt = self.store.erase_user(user, marked=known)
            self.overlay.begin_anew()
        if receipt.done is None:
            self.on_erasure()
        return ErasedOut(interactions=gone, **_say(receipt))

    def read_erasure(self, receipt: str) -> ErasureOut:
        """NotFoundError for a receipt that was never given."""
        found = self.store.read_receipt(receipt)
        if found is None:
            raise NotFoundError("expected the receipt of an erasure, got another")
        return ErasureOut(**_say(found))

    def move_to(self, overlay: Overlay, publish: Callable[[], None], forget: Callable[[], None]) -> None:
        """Answers come from another shard: `publish` puts them in place, `forget` takes out of the log what that shard
        has; nothing else is told meanwhile, and no answer lacks what was told before."""
        with self._lock:
            overlay.attach_store(self.store)
            publish()
            self.overlay = overlay
            forget()
            overlay.attach_store(self.store)

    def close(self) -> None:
        self.store.close()
