"""A silo as it is, and what applications have told since -> the silo with the next shard, and answers from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from client_service.feedback.absorb import absorb_feedback, forget_absorbed
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
from client_service.shard import Shard
from client_service.silo import Silo

Publish = Callable[[Recommender], None]


def rebuild_silo(silo: Silo, feedback: Feedback, publish: Publish) -> tuple[Silo, Refreshed]:
    """Absorb the log, compute the model at which training on the new shard starts, answer by it, and forget the old.

    A kill at any moment is made good by the next call, or by the next start. DataError, and nothing is changed, where
    the shard cannot be written or nobody would be left in it. Slow.
    """
    settings = silo.settings
    absorbed = absorb_feedback(settings.shard, feedback.store, settings.least_rating)
    forget = partial(forget_absorbed, feedback.store, absorbed, settings.least_rating)
    shard = silo.task.read(settings)
    if shard.digest == silo.shard.digest:
        after = silo
        feedback.move_to(feedback.overlay, lambda: None, forget)
    else:
        choose = bool(absorbed.erased)
        model = renew_model(settings, silo.task, shard, silo.device, silo.interrupt, choose=choose)
        after = _move_silo(silo, shard, model, feedback, publish, forget)
    erased = complete_erasures(settings, feedback.store, shard.digest)
    served = after.answers.served
    return after, Refreshed(after is not silo, None if served is None else served.version, erased)


def complete_erasures(settings: ClientSettings, store: FeedbackStore, shard: str) -> int:
    """Remove what is left of earlier contents of the shard, and say so on the receipts; how many erasures are done now.

    `shard`: the digest of the present content, of which the model is kept.
    """
    stale = store.read_stale()
    forget_shards(settings, shard, stale)
    return store.complete_erasures(stale)


def _move_silo(
    silo: Silo, shard: Shard, served: Any, feedback: Feedback, publish: Publish, forget: Callable[[], None]
) -> Silo:
    """Answers move before the files of the old model go."""
    settings, old = silo.settings, silo.answers
    overlay = Overlay(shard, least_rating=settings.least_rating)
    new = open_recommender(settings, shard, overlay)
    old.close()  # its lists stay in memory, and no more of them are written
    new.served = served
    feedback.move_to(overlay, lambda: publish(new), forget)
    if silo.guard is not None:
        silo.guard.take_up(shard.digest)
    return_free_memory()
    return replace(silo, shard=shard, answers=new, anchors=silo.anchors.of_shard(shard.digest))
