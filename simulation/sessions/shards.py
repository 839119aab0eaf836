"""Divided sessions -> the shard of each client."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from client_service.data.sessions import Int64, SessionShard
from simulation.sessions.sessions import Sessions


def divide_sessions(sessions: Sessions, clients: Int64) -> list[SessionShard]:
    """A shard for each client, in the order of their numbers `clients` (S,), over all items' table.

    A client's candidates are the items of its own sessions, held-out ones too: a shop knows what it sells.
    """
    order = np.argsort(clients, kind="stable")
    bounds = np.searchsorted(clients[order], np.arange(int(clients.max()) + 2))
    parts = (order[first:last] for first, last in pairwise(bounds))
    return [build_session_part(f"client-{place + 1}", sessions.select(rows)) for place, rows in enumerate(parts)]


def build_session_part(name: str, own: Sessions) -> SessionShard:
    """One client's sessions; places are the numbers that the items have in `own`."""
    places, clicks = np.unique(own.clicks, return_inverse=True)
    ids = tuple(own.items[place] for place in places)
    return SessionShard(name, ids, clicks.astype(np.int64), own.starts, own.splits, places, notes=own.notes)
