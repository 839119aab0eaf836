"""A silo as it is, and what applications have told since -> the silo with the next shard, and answers from it.

The next shard and its model are computed first, and written together; then the files of what was before are cleared,
then answers move, and the log last. A kill at any moment is made good by the next refresh, or by the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from client_service.best_model import find_kept
from client_service.feedback.absorb import Absorbed, absorb_feedback
from client_service.feedback.feedback import Feedback
from client_service.feedback.overlay import Overlay
from client_service.forgetting import clear_earlier
from client_service.learning.interrupt import Interrupted
from client_service.logs import LOGGER
from client_service.memory import return_free_memory
from client_service.refresh import Refreshed, describe_failure, describe_place
from client_service.renewal import ModelRenewal, Renewed
from client_service.serving.answerer import AtRest
from client_service.serving.opening import open_recommender
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.shard import Shard, hold_shard, save_shard
from client_service.silo import Silo
from client_service.tasks.items import answering_shard, list_shard, listed_items
from shared.errors import FederationError

Publish = Callable[[Recommender], None]


@dataclass(frozen=True)
class Rebuilt:
    """The silo as it goes on, and what is left to do once it does: `settle` clears the log, and says what the refresh
    did. It is slow; where it fails it is done by the next refresh."""

    silo: Silo
    settle: Callable[[], Refreshed]


def rebuild_silo(silo: Silo, feedback: Feedback, publish: Publish) -> Rebuilt:
    """Absorb the log, compute the model of the new shard, write both, and answer by them. Slow.

    DataError, and nothing is changed, where the shard cannot be written or nobody would be left in it.
    """
    settings = silo.settings
    with hold_shard(settings.shard) as before:
        absorbed = absorb_feedback(before, feedback.store, settings.least_rating, listed_items(settings))
        shard = list_shard(settings, absorbed.after)
        moves = shard.lists_digest != silo.shard.lists_digest
        if moves:
            with silo.answers.changing:
                after = _renew_silo(silo, shard, absorbed, feedback, publish)
        else:
            _write(settings, absorbed)
            after = silo
    return Rebuilt(after, partial(_settle, after, feedback, absorbed, changed=moves))


def _renew_silo(silo: Silo, shard: Shard, absorbed: Absorbed, feedback: Feedback, publish: Publish) -> Silo:
    """Until answers move they come from what is in memory. A model of the shard is there already where an earlier
    refresh was cut off; who has changed the shard beside this process may have erased somebody."""
    settings, known = silo.settings, silo.shard.digest
    erased = absorbed.forgotten > 0 or absorbed.before.digest != known
    if shard.digest != known:
        feedback.store.note_stale(known, shard.digest)
    renewal = ModelRenewal(settings, silo.task, shard, silo.device, silo.interrupt)
    everything = settings.fit_everything
    served = find_kept(silo.task, shard, settings.models_directory, silo.device, fit_everything=everything)
    renewed = _renew_model(renewal, erased=erased) if served is None else None
    _write(settings, absorbed)
    if renewed is not None:
        served = renewal.keep(renewed)
    clear_earlier(settings, feedback.store, shard.digest, erased=erased)
    return _move_silo(silo, shard, served, feedback, publish)


def _renew_model(renewal: ModelRenewal, *, erased: bool) -> Renewed | None:
    """The model of the new shard. An erasure does not wait for one that cannot be computed: popular items are served
    until a run has made another."""
    try:
        return renewal.renew(erased=erased)
    except (FederationError, OSError, Interrupted):
        raise
    except Exception as error:
        if not erased:
            raise
        LOGGER.error("model_not_renewed", reason=describe_failure(error), at=describe_place(error))
        return None


def _write(settings: ClientSettings, absorbed: Absorbed) -> None:
    if absorbed.after is not absorbed.before:
        save_shard(settings.shard, absorbed.after)


def _settle(silo: Silo, feedback: Feedback, absorbed: Absorbed, *, changed: bool) -> Refreshed:
    digest, store = silo.shard.digest, feedback.store
    feedback.forget_absorbed(absorbed.handed, silo.shard.lists_digest, absorbed.kept)
    clear_earlier(silo.settings, store, digest, erased=store.erasures.are_open())
    erased = store.erasures.complete()
    served = silo.answers.served
    version = None if served is None else served.version
    return Refreshed(changed, version, erased, absorbed.waiting, absorbed.dropped)


def _move_silo(silo: Silo, shard: Shard, served: AtRest | None, feedback: Feedback, publish: Publish) -> Silo:
    """What can fail comes before answers move."""
    settings, old = silo.settings, silo.answers
    answering = answering_shard(settings, shard)
    overlay = Overlay(answering, least_rating=settings.least_rating)
    new = open_recommender(settings, answering, overlay)
    new.changing = old.changing
    if silo.guard is not None:
        silo.guard.take_up(shard.digest)
    old.close()  # its lists stay in memory, and no more of them are written
    new.served = served  # type: ignore[assignment]
    feedback.move_to(overlay, lambda: publish(new))
    return_free_memory()
    return replace(silo, shard=shard, answers=new, anchors=silo.anchors.of_shard(shard.digest))
