"""Compiles a shard of visits and a next-item model, for the processes that answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compilation.folder_publisher import FolderPublisher
from client_service.compiled.session_network import parameter_arrays
from client_service.compiled.sessions import (
    KIND,
    MODEL_KIND,
    CompiledNextModel,
    CompiledSessions,
    NextModelHead,
    SessionsHead,
    TransitionsHead,
    open_next_model,
    open_sessions,
)
from client_service.compiled.texts import id_arrays, text_arrays
from client_service.compiled.weight_rows import weight_arrays
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.session_ranking import count_successors
from client_service.model_store.session_models import ServedSessions
from client_service.models.sequence.tagnn import TAGNN
from client_service.training.transition_scores import POPULAR, TransitionScores, VisitScores

Arrays = dict[str, NDArray[Any]]
PublishModel = Callable[[ServedSessions], CompiledNextModel]


def publish_sessions(shard: SessionShard, publisher: FolderPublisher) -> tuple[CompiledSessions, PublishModel]:
    """Compiles and publishes a shard of visits.

    Returns the compiled visits, and a function that compiles and publishes each model of them. An already published
    model of the same visits stays until that function publishes another. Both are in memory where the disk refuses.
    """
    compiled = compile_sessions(shard)
    place = publisher.save_shard(KIND, *compiled)
    sessions = CompiledSessions(*compiled) if place is None else open_sessions(place)
    publisher.publish_shard()

    def publish_model(served: ServedSessions) -> CompiledNextModel:
        head, arrays = compile_next_model(served, sessions)
        folder = publisher.save_model(MODEL_KIND, head, arrays)
        count = len(shard.item_ids)
        model = CompiledNextModel(head, arrays, count) if folder is None else open_next_model(folder, sessions)
        publisher.publish_model(folder, served)
        return model

    return sessions, publish_model


def compile_sessions_in_memory(shard: SessionShard) -> tuple[CompiledSessions, PublishModel]:
    """Compiles a shard of visits without folders, for a silo whose trainer alone answers.

    Returns the compiled visits, and a function that compiles each model of them.
    """
    sessions = CompiledSessions(*compile_sessions(shard))
    count = len(shard.item_ids)
    return sessions, lambda served: CompiledNextModel(*compile_next_model(served, sessions), count)


def compile_sessions(shard: SessionShard) -> tuple[SessionsHead, Arrays]:
    """Makes the head and the arrays of a shard of visits."""
    clicks, starts = shard.split_sessions(TRAIN)
    count = len(shard.item_ids)
    head = SessionsHead(name=shard.name, digest=shard.digest, items=count, titles=shard.titles is not None)
    arrays: Arrays = {
        **id_arrays("items", shard.item_ids),
        **_matrix_arrays("successors", count_successors(clicks, starts, count)),
        "popularity": np.bincount(clicks, minlength=count).astype(np.float32),
    }
    if shard.titles is not None:
        arrays |= text_arrays("titles", shard.titles)
    return head, arrays


def compile_next_model(served: ServedSessions, sessions: CompiledSessions) -> tuple[NextModelHead, Arrays]:
    """Makes the head and the arrays of a next-item model.

    A network whose share is 0 is left out.
    """
    fused = served.transitions
    has_network = fused is None or served.share > 0.0
    sets = [] if fused is None else _weighted_transitions(fused)
    head = NextModelHead(
        version=served.version,
        kept_at=served.kept_at,
        sessions=sessions.digest,
        network=("tagnn" if isinstance(served.model, TAGNN) else "srgnn") if has_network else None,
        share=served.share,
        transitions=tuple(_describe(scores, share) for scores, share in sets),
    )
    arrays: Arrays = {}
    if has_network:
        own = {name: value.detach().cpu().numpy() for name, value in served.model.named_parameters()}
        arrays |= parameter_arrays(own)
        arrays["vectors"] = np.ascontiguousarray(served.vectors.detach().cpu().numpy(), np.float32)
    for place, (scores, _) in enumerate(sets):
        sums = np.asarray(scores.near.sum(axis=1)).ravel()
        arrays |= _matrix_arrays(f"near-{place}", scores.near)
        arrays[f"scale-{place}"] = (1.0 / np.maximum(sums, 1e-9)).astype(np.float32)
        arrays[f"popular-{place}"] = scores.popular.astype(np.float32)
    return head, arrays


def _weighted_transitions(fused: VisitScores) -> list[tuple[TransitionScores, float]]:
    """Lists the sets of transitions whose share is above 0, with their shares."""
    if fused.summed is None:
        return [(fused.own, 1.0)]
    both = [(fused.own, 1.0 - fused.share), (fused.summed, fused.share)]
    return [(scores, share) for scores, share in both if share > 0.0]


def _describe(scores: TransitionScores, share: float) -> TransitionsHead:
    return TransitionsHead(
        share=share, decay=scores.decay, repeats=scores.repeats, second=scores.second, popular=POPULAR
    )


def _matrix_arrays(name: str, weights: sparse.csr_array) -> Arrays:
    return weight_arrays(name, weights.indptr, weights.indices, weights.data)
