"""The next item of a visit: a shard is click sessions of nobody in particular, and a model scores what comes next."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import torch

from client_service.data.interaction_files import find_places
from client_service.data.session_files import read_session_shard
from client_service.data.sessions import TRAIN, Prefixes, SessionShard
from client_service.evaluation.metrics import SESSION_LABELS, SESSION_PRIMARY, Measures
from client_service.evaluation.session_metrics import measure_prefixes
from client_service.event_log.database import FOLDER
from client_service.joining_value.session_comparison import compare_with_counts
from client_service.models.relevance import UNFITTED, Relevance
from client_service.runtime.interruption import Interrupt
from client_service.schemas import ComparisonOut
from client_service.serving.model_store import ModelHead
from client_service.serving.next_items import NextItems, ServedSessions, freeze_sessions
from client_service.settings import ClientSettings
from client_service.tasks.page_texts import VISITS, try_visit
from client_service.tasks.task import OpenedTask, ReplicaTask, RunContext, Task, follow_nothing
from client_service.training.session_trainer import SessionTraining, carry_sessions, rows_of_sessions
from shared.errors import SettingsError
from shared.files import make_private_folder
from shared.method.declaration import Counts

JUDGED = 4000  # validation examples by which a round is chosen, the same in every round


def read_listed_sessions(settings: ClientSettings) -> SessionShard:
    """The shard with each item's place in the catalogue that all clients share; DataError where one is not listed."""
    _require_no_refresh(settings)
    if settings.fit_everything:
        refuse_refit()
    shard = read_session_shard(settings.shard)
    size, path = settings.method.catalogue, settings.catalogue
    if path is not None:
        return shard.with_places(*find_places(shard.item_ids, path, size))
    if size != len(shard.item_ids):
        expected = f"expected the list of the {size} items that the method's setting `catalogue` says"
        raise SettingsError(f"catalogue: {expected}, got none, and a shard of {len(shard.item_ids)} items")
    return shard


def _require_no_refresh(settings: ClientSettings) -> None:
    """SettingsError where refreshes are asked for: applications tell a silo of sessions nothing to refresh by."""
    for name in ("refresh_seconds", "refresh_interactions"):
        if (value := getattr(settings, name)) is not None:
            raise SettingsError(f"{name}: expected none with task 'sessions', whose shard is a file, got {value:g}")


def count_sessions(shard: SessionShard) -> Counts:
    """Training sessions stand where users do, and their clicks where edges do."""
    clicks, starts = shard.split_sessions(TRAIN)
    return Counts(users=len(starts) - 1, items=len(shard.item_ids), edges=len(clicks))


def refuse_basis(*of: object) -> NoReturn:
    """SettingsError: a common basis is of users' graphs."""
    del of
    raise SettingsError("method.basis: expected 'off' for sessions, which have no graph of users and items")


def refuse_refit(*of: object) -> NoReturn:
    """SettingsError: a session model is trained step by step, and has no closed form to compute anew."""
    del of
    raise SettingsError("fit_everything: expected false with task 'sessions', whose models are trained, got true")


def begin_sessions(
    place: RunContext, shard: SessionShard, device: torch.device, interrupt: Interrupt
) -> tuple[SessionTraining, dict[str, Any]]:
    """A model where its run begins."""
    training = SessionTraining(shard, place.method, device, interrupt, place.kind)
    return training, {**count_sessions(shard).model_dump(), "valid_users": len(judged_examples(shard))}


def judged_examples(shard: SessionShard) -> Prefixes:
    """At most JUDGED validation examples, spread evenly."""
    step = max(1, -(-len(shard.valid) // JUDGED))
    return Prefixes(shard.valid.clicks, shard.valid.begin[::step], shard.valid.end[::step])


def rebuild_sessions(head: ModelHead, shard: SessionShard, folder: Path, device: torch.device) -> SessionTraining:
    """The model to which a head belongs, before its parameters are loaded."""
    del folder
    return SessionTraining(shard, head.method, device, kind=head.kind)


def leave_probabilities(shard: SessionShard, served: ServedSessions, interrupt: Interrupt) -> Relevance:
    """A session model's scores are probabilities as they are: it is trained with their cross entropy."""
    del shard, served, interrupt
    return UNFITTED


def judge_validation(shard: SessionShard, served: ServedSessions, interrupt: Interrupt) -> Measures:
    """On validation examples, the shard's own items candidates."""
    return measure_prefixes(served.score, judged_examples(shard), len(shard.item_ids), interrupt)


def judge_test(shard: SessionShard, served: ServedSessions, interrupt: Interrupt) -> Measures:
    """On all test examples."""
    return measure_prefixes(served.score, shard.test, len(shard.item_ids), interrupt)


def compare_counts(
    place: RunContext, shard: SessionShard, served: ServedSessions, interrupt: Interrupt
) -> ComparisonOut:
    """The served model beside the silo's own counts, for the silo's operator."""
    del place
    return compare_with_counts(shard, served.score, interrupt)


def name_nothing(training: SessionTraining) -> None:
    """There is no anchor to compare with."""
    del training


def describe_nothing(training: SessionTraining) -> dict[str, Any]:
    """Nothing more is known when training is over."""
    del training
    return {}


def open_next_items(settings: ClientSettings, shard: SessionShard) -> OpenedTask:
    """Answers alone: applications tell a silo of sessions nothing yet. Replicas that mount the folder find it."""
    make_private_folder(settings.state_directory / FOLDER)
    return OpenedTask(NextItems(shard), None)


def follow_next_items(settings: ClientSettings, shard: SessionShard) -> ReplicaTask:
    """The same in another process."""
    del settings
    return ReplicaTask(NextItems(shard), follow_nothing)


SESSIONS = Task(
    name="sessions",
    labels=SESSION_LABELS,
    primary=SESSION_PRIMARY,
    nouns=VISITS,
    read=read_listed_sessions,
    count=count_sessions,
    everything=refuse_refit,
    refit=refuse_refit,
    rows=rows_of_sessions,
    carry=carry_sessions,
    count_in_catalogue=refuse_basis,
    digest_summed=refuse_basis,
    begin=begin_sessions,
    rebuild=rebuild_sessions,
    freeze=freeze_sessions,
    relate=leave_probabilities,
    judge=judge_validation,
    test=judge_test,
    compare_alone=compare_counts,
    compare=name_nothing,
    describe=describe_nothing,
    answer=NextItems,
    open=open_next_items,
    follow=follow_next_items,
    try_out=try_visit,
)
