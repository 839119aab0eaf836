"""Task of sessions: a shard is click sessions, and a model scores the next click.

Sessions have no user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from client_service.compilation.folder_publisher import FolderPublisher
from client_service.compilation.sessions import compile_sessions_in_memory, publish_sessions
from client_service.data.interaction_files import find_places
from client_service.data.item_matches import name_items, read_matches
from client_service.data.prefixes import Prefixes
from client_service.data.session_files import load_session_shard
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import SESSION_LABELS, SESSION_PRIMARY, Measures
from client_service.evaluation.session_ranking import measure_prefixes
from client_service.joining_value.comparison import compare_sessions_with_local
from client_service.model_store.model_files import ModelHead
from client_service.model_store.refitting import load_model_basis
from client_service.model_store.session_models import ServedSessions, freeze_sessions
from client_service.runtime.interruption import Interrupt
from client_service.serving.next_items import NextItems
from client_service.settings import ClientSettings
from client_service.sums.transitions import Transitions
from client_service.tasks.page_texts import VISITS, try_visit
from client_service.tasks.task import ModelStart, RunContext, Task
from client_service.training.session_trainer import SessionTrainer, list_session_rows
from shared.errors import SettingsError
from shared.method.declaration import Counts

JUDGED = 4000  # validation examples by which a round is chosen, the same in every round


def load_listed_sessions(settings: ClientSettings) -> SessionShard:
    """Loads the shard with each item's place in the shared catalogue.

    Raises DataError if an item is not listed.
    """
    shard = load_session_shard(settings.shard)
    size, path = settings.method.catalogue, settings.catalogue
    if path is not None:
        matches = {} if settings.matches is None else read_matches(settings.matches)
        return shard.with_places(*find_places(name_items(shard.item_ids, matches), path, size))
    if size != len(shard.item_ids):
        expected = f"expected the list of the {size} items that the method's setting `catalogue` says"
        raise SettingsError(f"catalogue: {expected}, got none, and a shard of {len(shard.item_ids)} items")
    return shard


def count_sessions(shard: SessionShard) -> Counts:
    """Counts training sessions as users, and their clicks as edges."""
    clicks, starts = shard.split_sessions(TRAIN)
    return Counts(users=len(starts) - 1, items=len(shard.item_ids), edges=len(clicks))


def judged_examples(shard: SessionShard) -> Prefixes:
    """Selects at most JUDGED validation examples, spread evenly."""
    step = max(1, -(-len(shard.valid) // JUDGED))
    return Prefixes(shard.valid.clicks, shard.valid.begin[::step], shard.valid.end[::step])


def count_judged(shard: SessionShard) -> int:
    """Counts the validation examples that judge a model."""
    return len(judged_examples(shard))


def judge_validation(shard: SessionShard, served: ServedSessions, interrupt: Interrupt) -> Measures:
    """Measures a model on validation examples; candidates are the shard's own items."""
    return measure_prefixes(served.score, judged_examples(shard), len(shard.item_ids), interrupt)


def judge_test(shard: SessionShard, served: ServedSessions, interrupt: Interrupt) -> Measures:
    """Measures a model on all test examples."""
    return measure_prefixes(served.score, shard.test, len(shard.item_ids), interrupt)


def begin_training(
    place: RunContext, shard: SessionShard, device: torch.device, interrupt: Interrupt
) -> tuple[SessionTrainer, dict[str, Any]]:
    """Starts a model, with the transitions of all silos if they were summed."""
    training = SessionTrainer(shard, place.method, device, interrupt, place.kind)
    if isinstance(place.basis, Transitions):
        training.add_sums(place.basis)
    return training, {}


def rebuild_training(head: ModelHead, shard: SessionShard, folder: Path, device: torch.device) -> SessionTrainer:
    """Rebuilds the model to which a head belongs; the transitions are beside its `folder`.

    Raises DataError if they are missing: without them the model ranks differently.
    """
    training, known = SessionTrainer(shard, head.method, device, kind=head.kind), load_model_basis(folder, head)
    if isinstance(known, Transitions):
        training.add_sums(known)
    return training


def summarise_sessions(
    place: RunContext, shard: SessionShard, served: ServedSessions, training: SessionTrainer, interrupt: Interrupt
) -> dict[str, Any]:
    """Compares the served model with the silo's local counts."""
    del place
    known = training.transitions
    if known is None or known.summed is None:
        return {"comparison": compare_sessions_with_local(shard, served.score, interrupt)}
    floors = {"transitions of all": known.summed.score}
    return {"comparison": compare_sessions_with_local(shard, served.score, interrupt, known.own.score, floors)}


def answer_visits(shard: SessionShard, serving: Path | None = None) -> NextItems:
    """Compiles a shard of visits and opens its answers.

    serving: the folder in which it is published; None: it is compiled in memory alone.
    """
    if serving is None:
        return NextItems(*compile_sessions_in_memory(shard))
    return NextItems(*publish_sessions(shard, FolderPublisher(serving, "sessions", shard)))


SESSIONS = Task(
    name="sessions",
    labels=SESSION_LABELS,
    primary=SESSION_PRIMARY,
    nouns=VISITS,
    load_shard=load_listed_sessions,
    count=count_sessions,
    count_judged=count_judged,
    trainer=ModelStart(begin_training, rebuild_training),
    judge=judge_validation,
    test=judge_test,
    answer=answer_visits,
    publish=answer_visits,
    try_out=try_visit,
    freeze=freeze_sessions,
    rows=list_session_rows,
    summarise=summarise_sessions,
)
"""A session model is trained with the cross entropy of its scores: these are probabilities as they are."""
