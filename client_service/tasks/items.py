"""Task of items: a shard is a user-item graph, and a model ranks unseen items."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_service.compilation.item_publisher import ItemPublisher
from client_service.compilation.shard import compile_in_memory
from client_service.compiled.model import Relevance
from client_service.compiled.publication import REFRESH, SERVING
from client_service.data.interaction_files import load_shard, lock_shard, read_catalogue, save_shard, with_places
from client_service.data.interactions import Shard
from client_service.data.item_matches import name_items, read_matches
from client_service.evaluation.metrics import LABELS, PRIMARY, Measures
from client_service.evaluation.ranking import measure_test, measure_validation, sample_validation_users
from client_service.event_log.log_store import MergeResult
from client_service.event_log.overlay import Overlay
from client_service.event_log.service import open_log
from client_service.event_log.shard_update import merge_log_into_shard
from client_service.event_log.store import EventStore
from client_service.joining_value.comparison import compare_with_local
from client_service.model_store.model_files import ModelHead, ServedItems, freeze
from client_service.model_store.refitting import Refit, load_model_basis, load_model_content
from client_service.models.closed_form.full_spectrum import COMPONENTS, EXPONENT, FILTER
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import Interrupt
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.tasks.page_texts import USERS, trial
from client_service.tasks.task import (
    EventIntake,
    ModelStart,
    OpenedTask,
    Refitting,
    Reopened,
    RunContext,
    Task,
)
from client_service.training.item_trainer import ItemTrainer, list_item_rows
from client_service.training.relevance_fit import fit_relevance
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.start_choice import Choice, load_choice, save_choice
from shared.method.declaration import Counts
from shared.method.settings import MethodSettings
from shared.method.spectrum import RANKING, TRAINING, Accuracy
from shared.method.tensors import EXCHANGES
from shared.strategies import build_strategy

EARLIER_KINDS = ("lists-*", "nearest-*")  # files of earlier versions, which kept lists beside their models


def load_listed_shard(settings: ClientSettings) -> Shard:
    """Loads the shard with each item's place in the catalogue, if the clients share one."""
    return list_shard(settings, load_shard(settings.shard))


def list_shard(settings: ClientSettings, shard: Shard) -> Shard:
    """Adds the items' places in the catalogue to a loaded shard."""
    if settings.matches is not None:
        shard = replace(shard, matched_ids=name_items(shard.item_ids, read_matches(settings.matches)))
    return with_places(shard, settings.catalogue, settings.method.catalogue, partly=not _shares_items(settings))


def listed_items(settings: ClientSettings) -> tuple[str, ...] | None:
    """Returns the items that the shard may have; None: any.

    Raises DataError for an unreadable list.
    """
    if settings.catalogue is None or not _shares_items(settings):
        return None
    return tuple(read_catalogue(settings.catalogue))


def _shares_items(settings: ClientSettings) -> bool:
    """Tells whether every item has a row that the clients share.

    Statistics of the items need none for each.
    """
    return build_strategy(settings.strategy, settings.method).shares_items(settings.method)


def all_pairs(shard: Shard) -> Shard:
    """Returns the shard with all of its pairs for training."""
    return shard.with_all_data


def count_graph(shard: Shard) -> Counts:
    users, items = shard.train.shape
    return Counts(users=users, items=items, edges=shard.train.nnz)


def begin_training(
    place: RunContext, shard: Shard, device: torch.device, interrupt: Interrupt
) -> tuple[ItemTrainer, dict[str, Any]]:
    """Starts a model, with the choices that an earlier run made on the same shard."""
    method, folder = place.method, place.cache or place.folder
    basis = _choice_basis(place)
    known = load_choice(shard, method.cutoff, folder, basis)
    recipe = known.recipe if method.fusion else None
    began = time.perf_counter()
    beside = filter_spectrum(method, place.kind, recipe)
    spectrum = cached_spectrum(shard, method.cutoff, folder, spectrum_accuracy(place.run), beside)
    seconds = time.perf_counter() - began
    training = ItemTrainer(
        shard, spectrum, method, device, known.start, interrupt, place.kind, recipe, place.basis, place.content
    )
    choice = Choice(start=training.start or known.start, recipe=training.recipe or known.recipe)
    if choice != known:
        save_choice(shard, method.cutoff, folder, choice, basis)
    return training, {**_choices(training), "spectrum_seconds": seconds}


def _choice_basis(place: RunContext) -> str:
    """Makes the key under which choices are kept beside the shard.

    It names the sums, and tells if the model begins in those of the items.
    """
    content = "" if place.content is None else f"content-{place.content.digest[:16]}"
    if place.basis is None:
        return content
    return place.basis.digest[:16] + ("-common-2" if place.method.start == "common" else "") + content


def count_judged(shard: Shard) -> int:
    """Counts the users by whose validation items a model is judged."""
    users = sample_validation_users(shard.train.shape[0], seed=0)
    return int(np.count_nonzero(np.diff(shard.valid.indptr)[users]))


def _choices(training: ItemTrainer) -> dict[str, Any]:
    start, recipe = training.start, training.recipe
    return {"start": None if start is None else asdict(start), "recipe": None if recipe is None else asdict(recipe)}


def rebuild_training(head: ModelHead, shard: Shard, folder: Path, device: torch.device) -> ItemTrainer:
    """Rebuilds the model to which a head belongs.

    `folder` has, or gets, the shard's spectrum; the common basis is beside it. Raises DataError if the basis is
    missing: without it the model ranks differently.
    """
    basis, content = load_model_basis(folder, head), load_model_content(folder, head)
    beside = None if head.recipe is None else filter_spectrum(head.method, head.kind, head.recipe)
    spectrum = cached_spectrum(shard, head.method.cutoff, folder, spectrum_accuracy(head.run), beside)
    return ItemTrainer(
        shard,
        spectrum,
        head.method,
        device,
        head.start,
        kind=head.kind,
        recipe=head.recipe,
        basis=basis,
        content=content,
    )


def spectrum_accuracy(run: str) -> Accuracy:
    """Chooses the accuracy of a run's spectrum.

    A refresh only ranks by its spectrum and trains nothing on it, so a lower accuracy is enough.
    """
    return RANKING if run == REFRESH else TRAINING


def filter_spectrum(method: MethodSettings, kind: str, recipe: Recipe | None) -> tuple[int, float] | None:
    """Returns cut-off and exponent of the spectrum of the fused filter.

    None if no filter is fused with the model. recipe: None if validation has not chosen yet.
    """
    starts_at_filter = EXCHANGES[kind or method.model].starts_at_filter and method.start != "random"
    heard = recipe is None or recipe.loudness(FILTER.name) > 0.0
    return (COMPONENTS, EXPONENT) if method.fusion and starts_at_filter and heard else None


def relate_scores(shard: Shard, served: ServedItems, interrupt: Interrupt) -> Relevance:
    """Fits the probability that a user takes an item with a given score."""
    return fit_relevance(shard, served.ranker, interrupt)


def judge_validation_lists(shard: Shard, served: ServedItems, interrupt: Interrupt) -> Measures:
    """Measures lists on the validation items of at most 2,000 users, always the same."""
    users = sample_validation_users(shard.train.shape[0], seed=0)
    return measure_validation(shard, interrupt.check_before(served.ranker.top), users)


def judge_test_lists(shard: Shard, served: ServedItems, interrupt: Interrupt) -> Measures:
    """Measures lists on the test items of all users."""
    return measure_test(shard, interrupt.check_before(served.ranker.top))


def summarise_items(
    place: RunContext, shard: Shard, served: ServedItems, training: ItemTrainer, interrupt: Interrupt
) -> dict[str, Any]:
    """Compares the served model with popularity and the local model, and averages margin angles."""
    comparison = compare_with_local(shard, served, place.method.cutoff, place.cache or place.folder, interrupt)
    return {"comparison": comparison, "angles": mean_angles(training)}


def mean_angles(training: ItemTrainer) -> dict[str, float]:
    """Computes the mean of xi over users, by log2 bucket of the item's popularity."""
    tables = training.tables
    weights = torch.bincount(tables.user_bucket, minlength=len(tables.user_table)).cpu().numpy()
    angles = np.average(tables.angles().cpu().numpy(), axis=0, weights=weights)
    return {str(bucket): float(angle) for bucket, angle in enumerate(angles)}


def answering_shard(settings: ClientSettings, shard: Shard) -> Shard:
    """Returns the shard that answers follow from: training pairs, or all pairs if configured."""
    return shard.with_all_data if settings.fit_everything else shard


def open_lists(settings: ClientSettings, shard: Shard) -> OpenedTask:
    """Opens the recommender of the shard's users, and the event log."""
    recommender, publisher = open_recommender(settings, shard)
    publisher.publish_shard()
    return OpenedTask(recommender, open_log(settings, recommender.overlay))


def open_recommender(settings: ClientSettings, shard: Shard) -> tuple[Recommender, ItemPublisher]:
    """Opens the recommender, and the publisher by which other processes answer alike.

    Files of earlier versions that held lists are deleted.
    """
    judged = shard if settings.fit_everything else None
    publisher = ItemPublisher(answering_shard(settings, shard), settings.state_directory / SERVING, judged=judged)
    for kind in EARLIER_KINDS:
        for path in settings.models_directory.glob(kind):
            path.unlink(missing_ok=True)
    overlay = Overlay(publisher.compiled, least_rating=settings.least_rating)
    recommender = Recommender(publisher.compiled, overlay, publisher=publisher)
    publisher.replace_model = partial(setattr, recommender, "model")
    return recommender, publisher


def merge_events(settings: ClientSettings, shard: Shard, store: EventStore) -> MergeResult[Shard]:
    """Merges the log into the shard, over the items that the shard may have."""
    return merge_log_into_shard(shard, store, settings.least_rating, listed_items(settings))


def reopen_lists(settings: ClientSettings, shard: Shard) -> Reopened:
    """Opens lists of another shard's users, which are published when a model is there."""
    recommender, publisher = open_recommender(settings, shard)
    return Reopened(recommender, recommender.overlay, lambda: publisher.failure)


def answer_alone(shard: Shard) -> Recommender:
    """Opens a recommender in a silo without a service around it.

    It answers popular items until it has a model.
    """
    return Recommender(compile_in_memory(shard))


def digest_text(shard: Shard) -> str:
    """Returns the digest of attributes and vectors of the items."""
    return shard.text_digest


ITEMS = Task(
    name="items",
    labels=LABELS,
    primary=PRIMARY,
    nouns=USERS,
    load_shard=load_listed_shard,
    count=count_graph,
    count_judged=count_judged,
    trainer=ModelStart(begin=begin_training, rebuild=rebuild_training),
    judge=judge_validation_lists,
    test=judge_test_lists,
    answer=answer_alone,
    try_out=trial,
    freeze=freeze,
    rows=list_item_rows,
    text_digest=digest_text,
    relate=relate_scores,
    summarise=summarise_items,
    refitting=Refitting(include_all_data=all_pairs, refit=Refit),
    events=EventIntake(
        open=open_lists, hold=lock_shard, merge=merge_events, place=list_shard, save=save_shard, reopen=reopen_lists
    ),
)
