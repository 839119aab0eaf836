"""What applications tell -> the log, durable first, and then every answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client_service.feedback.messages import ErasedOut, ErasureOut, InteractionsIn, InteractionsOut, ItemIn
from client_service.feedback.overlay import Overlay
from client_service.feedback.store import FeedbackStore
from client_service.feedback.told import ErasureReceipt, HandedOver
from client_service.logs import LOGGER
from client_service.shard.storage import stated_digest
from shared.errors import DataError, NotFoundError, UnavailableError

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
    """The store and the overlay of one silo, changed together. Its calls wait for the disk: not in an event loop.

    folder: of the shard, which another process may have rewritten since it was read.
    """

    def __init__(self, store: FeedbackStore, overlay: Overlay, folder: Path) -> None:
        self.store, self.overlay, self._folder = store, overlay, folder
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
            self.overlay.put_items(self.store.put_item(item, facts), {item: facts})
        return facts

    def erase_user(self, user: str) -> ErasedOut:
        """The user is unknown from the next answer on, and gone from the log; the rest follows with a refresh."""
        with self._lock:
            gone, given = self.store.erasures.erase_user(user, known=self._may_hold(user))
            self.overlay.begin_anew()
        self._settle_log()
        receipt = self.store.erasures.read_receipt(given.receipt) or given
        if receipt.done is None:
            self.on_erasure()
        return ErasedOut(interactions=gone, **_say(receipt))

    def _may_hold(self, user: str) -> bool:
        """Has the shard this user? One that was written since answers came from it is not looked into."""
        if self.overlay.user_row(user) is not None:
            return True
        try:
            return stated_digest(self._folder) not in (None, self.overlay.shard_digest)
        except DataError:
            return True

    def _settle_log(self) -> None:
        """Where the disk does not allow it now, a refresh tries again: the erasure stands all the same."""
        try:
            self.store.erasures.complete_unmarked()
        except UnavailableError as error:
            LOGGER.warning("erasure_not_settled", reason=str(error))

    def read_erasure(self, receipt: str) -> ErasureOut:
        """NotFoundError for a receipt that was never given."""
        found = self.store.erasures.read_receipt(receipt)
        if found is None:
            raise NotFoundError("expected the receipt of an erasure, got another")
        return ErasureOut(**_say(found))

    def move_to(self, overlay: Overlay, publish: Callable[[], None]) -> None:
        """Answers come from another shard: `publish` puts them in place. Nothing is told meanwhile, and no answer lacks
        what was told before."""
        with self._lock:
            overlay.attach_store(self.store)
            publish()
            self.overlay = overlay

    def forget_absorbed(self, handed: HandedOver, shard: str, kept: list[int]) -> None:
        """Take out of the log what the shard of this digest has, which answers come from."""
        with self._lock:
            self.store.forget_absorbed(handed, shard, kept)
            self.overlay.begin_anew()

    def close(self) -> None:
        self.store.close()
