"""Divided sessions -> what each client trains and is judged on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from client_service.sessions.prefixes import Int64, Prefixes
from client_service.sessions.training import SessionShard
from shared.words import count_noun
from simulation.sessions.sessions import TEST, TRAIN, VALID, Sessions


@dataclass(frozen=True)
class SessionClient:
    """One silo or device: its shard, its sessions, and its held-out examples."""

    shard: SessionShard
    sessions: Sessions
    valid: Prefixes
    test: Prefixes


def divide_sessions(sessions: Sessions, clients: Int64) -> list[SessionClient]:
    """A client for each number in `clients` (S,) that has training sessions, in that order.

    A client's candidates are the items of its own sessions, held-out ones too: a shop knows what it sells.
    """
    order = np.argsort(clients, kind="stable")
    bounds = np.searchsorted(clients[order], np.arange(int(clients.max()) + 2))
    parts = (order[first:last] for first, last in pairwise(bounds))
    with_training = (rows for rows in parts if (sessions.splits[rows] == TRAIN).any())
    return [_client(f"client-{place + 1}", sessions.select(rows)) for place, rows in enumerate(with_training)]


def _client(name: str, own: Sessions) -> SessionClient:
    digest = hashlib.sha256()
    for part in (own.clicks, own.starts, own.splits):
        digest.update(np.ascontiguousarray(part).data)
    shard = SessionShard(name, digest.hexdigest(), own.examples(TRAIN), np.unique(own.clicks))
    return SessionClient(shard, own, own.examples(VALID), own.examples(TEST))


def describe_clients(clients: list[SessionClient]) -> str:
    """How many there are, and their training sessions from the least to the most."""
    counts = sorted(int(np.count_nonzero(one.sessions.splits == TRAIN)) for one in clients)
    middle = counts[len(counts) // 2]
    return (
        f"{count_noun(len(clients), 'client')} of {counts[0]:,} to {counts[-1]:,} training sessions, median {middle:,}"
    )
