"""A silo as it is, and what applications have told since -> the silo with the next shard, and answers from it.

The next shard and its model are computed first, and written together; then answers move, then the log and the files of
what was before are cleared. A kill at any moment is made good by the next refresh, or by the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from client_service.feedback.absorb import Absorbed, absorb_feedback
from client_service.feedback.feedback import Feedback
from client_service.feedback.overlay import Overlay
from client_service.feedback.store import FeedbackStore
from client_service.forgetting import forget_shards
from client_service.memory import return_free_memory
from client_service.refresh import Refreshed
from client_service.renewal import renew_model
from client_service.serving.opening import open_recommender
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.shard import Shard, hold_shard, save_shard
from client_service.silo import Silo
from client_service.tasks.items import list_shard, listed_items

Publish = Callable[[Recommender], None]


@dataclass(frozen=True)
class Rebuilt:
    """The silo as it goes on, and what is left to do once it does: `settle` clears what was before, and says what the
    refresh did. It is slow; where it fails it is done by the next refresh."""

    silo: Silo
    settle: Callable[[], Refreshed]


def rebuild_silo(silo: Silo, feedback: Feedback, publish: Publish) -> Rebuilt:
    """Absorb the log, compute the model of the new shard, write both, and answer by them. Slow.

    DataError, and nothing is changed, where the shard cannot be written or nobody would be left in it.
    """
    settings = silo.settings
    with hold_shard(settings.shard) as before:
        absorbed = absorb_feedback(before, feedback.store, settings.least_rating, listed_items(settings))
        shard, after = list_shard(settings, absorbed.after), silo
        moves = shard.digest != silo.shard.digest
        if absorbed.after is not absorbed.before:
            save_shard(settings.shard, absorbed.after)
        if moves:
            choose = absorbed.forgotten > 0
            model = renew_model(settings, silo.task, shard, silo.device, silo.interrupt, choose=choose)
            after = _move_silo(silo, shard, model, feedback, publish)
    return Rebuilt(after, partial(_settle, after, feedback, absorbed, changed=moves))


def complete_erasures(settings: ClientSettings, store: FeedbackStore, shard: str) -> int:
    """Remove what is left of earlier contents of the shard, and say so on the receipts; how many erasures are done now.

    `shard`: the digest of the present content, of which the model is kept.
    """
    stale = store.read_stale()
    forget_shards(settings, shard, stale)
    return store.erasures.complete(stale)


def _settle(silo: Silo, feedback: Feedback, absorbed: Absorbed, *, changed: bool) -> Refreshed:
    digest = silo.shard.digest
    feedback.forget_absorbed(absorbed.handed, digest, absorbed.kept)
    erased = complete_erasures(silo.settings, feedback.store, digest)
    served = silo.answers.served
    version = None if served is None else served.version
    return Refreshed(changed, version, erased, absorbed.waiting, absorbed.dropped)


def _move_silo(silo: Silo, shard: Shard, served: Any, feedback: Feedback, publish: Publish) -> Silo:
    """Answers move before the files of the old model go. What can fail comes before that."""
    settings, old = silo.settings, silo.answers
    overlay = Overlay(shard, least_rating=settings.least_rating)
    new = open_recommender(settings, shard, overlay)
    if silo.guard is not None:
        silo.guard.take_up(shard.digest)
    old.close()  # its lists stay in memory, and no more of them are written
    new.served = served
    feedback.move_to(overlay, lambda: publish(new))
    return_free_memory()
    return replace(silo, shard=shard, answers=new, anchors=silo.anchors.of_shard(shard.digest))
