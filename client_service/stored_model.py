"""What an earlier process has kept -> the model by which a silo answers when it starts; of earlier shards nothing."""

from __future__ import annotations

from client_service.best_model import find_kept
from client_service.feedback.store import FeedbackStore
from client_service.forgetting import clear_earlier, keep_alone
from client_service.learning.interrupt import Interrupted
from client_service.logs import LOGGER
from client_service.refresh import describe_failure, describe_place
from client_service.renewal import ModelRenewal
from client_service.serving.answerer import AtRest
from client_service.serving.checkpoint import read_head


def take_up_stored(renewal: ModelRenewal, store: FeedbackStore | None) -> AtRest | None:
    """The kept model, or for a shard that has changed the one that follows from it. Slow.

    A damaged model is no reason to stay away, nor one that needs more memory than there is, nor a disk that is full
    now: None, and popular items are served, flagged, until there is a new model. What is left to do is done by a
    refresh.
    """
    shard, settings = renewal.shard, renewal.settings
    try:
        served = find_kept(
            renewal.task,
            shard,
            settings.models_directory,
            renewal.device,
            fit_everything=settings.fit_everything,
        ) or _renew(renewal)
        if store is not None:
            clear_earlier(settings, store, shard.digest, erased=store.erasures.are_open())
            store.erasures.complete()
    except Interrupted:
        raise
    except Exception as error:
        LOGGER.error("kept_model_not_taken_up", reason=describe_failure(error), at=describe_place(error))
        return None
    return served


def _renew(renewal: ModelRenewal) -> AtRest | None:
    """Who has changed the shard since a model was kept may have erased somebody: nothing stays of what it was."""
    folder, digest = renewal.settings.models_directory, renewal.shard.digest
    head = read_head(folder)
    if head is None or head.shard == digest:
        return None
    renewed = renewal.renew(erased=True)
    served = None if renewed is None else renewal.keep(renewed)
    keep_alone(folder, digest)
    return served
