"""Division of sessions among clients: by time, at random, by item, by device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy import sparse
from scipy.cluster.vq import kmeans2
from scipy.sparse.linalg import svds

from client_service.data.prefixes import Int64
from client_service.data.sessions import TRAIN, SessionShard, mark_pairs, scale_rows
from shared.errors import SettingsError
from shared.method.graph import Float64
from simulation.sessions.sessions import Sessions, keep_trained_clients

DIRECTIONS = 32  # of the sessions' items, in which they are clustered
PAIRS = 20_000  # of clients, of which the divergence of a cut is a mean


def cut_by_time(sessions: Sessions, clients: int, seed: int) -> Int64:
    """Divides sessions into consecutive blocks, each split by itself.

    A client is evaluated on the last of its own days.
    """
    del seed
    found = np.empty(len(sessions), dtype=np.int64)
    for split in np.unique(sessions.splits):
        rows = np.flatnonzero(sessions.splits == split)
        found[rows] = np.arange(len(rows)) * clients // len(rows)
    return found


def cut_at_random(sessions: Sessions, clients: int, seed: int) -> Int64:
    """Divides sessions at random, into equal parts."""
    return np.random.default_rng(seed).permutation(len(sessions)) % clients


def cut_by_items(sessions: Sessions, clients: int, seed: int) -> Int64:
    """Divides sessions by similar items: k-means in the items' main directions."""
    owners = np.repeat(np.arange(len(sessions)), sessions.lengths)
    having = mark_pairs(owners, sessions.clicks, (len(sessions), len(sessions.items)))
    having = scale_rows(having, 1.0 / np.sqrt(np.diff(having.indptr)))
    places = np.asarray(having @ _main_directions(having, seed).T)
    places /= np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
    if (most := len(np.unique(places.round(6), axis=0))) < clients:
        raise SettingsError(f"--clients: expected at most {most:,} with --method items, got so few kinds of session")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a client that gets no session is left out, and counted
        _, groups = kmeans2(places, clients, minit="++", rng=seed)
    return np.asarray(groups, dtype=np.int64)


def _main_directions(having: sparse.csr_array, seed: int) -> Float64:
    """Computes the main directions of sessions in the space of their items.

    (at most DIRECTIONS, N).
    """
    least = min(having.shape)
    if least < 3:
        return np.eye(having.shape[1])[:DIRECTIONS]
    start = np.random.default_rng(seed).normal(size=least)
    _, _, directions = svds(having, k=min(DIRECTIONS, least - 1), v0=start)
    return directions


def cut_by_device(sessions: Sessions, clients: int, seed: int) -> Int64:
    """Divides sessions by their first item: those with near numbers share a device.

    Devices differ as much as whole visits do.
    """
    del seed
    first = sessions.clicks[sessions.starts[:-1]]
    found = np.empty(len(sessions), dtype=np.int64)
    for split in np.unique(sessions.splits):
        rows = np.flatnonzero(sessions.splits == split)
        order = rows[np.argsort(first[rows], kind="stable")]
        found[order] = np.arange(len(rows)) * clients // len(rows)
    return found


CUTS: dict[str, Callable[[Sessions, int, int], Int64]] = {
    "time": cut_by_time,
    "random": cut_at_random,
    "items": cut_by_items,
    "device": cut_by_device,
}
"""(sessions, clients, seed) -> the client of each session, (S,)."""


def cut_sessions(sessions: Sessions, cut: str, clients: int, seed: int) -> tuple[Sessions, Int64]:
    """Divides sessions; returns them and the client of each, (S,).

    Clients are numbered from 0 on without a gap. A client without a training session is left out with its sessions.
    Raises SettingsError for an unknown cut, or more clients than training sessions.
    """
    if cut not in CUTS:
        raise SettingsError(f"--method: expected one of {', '.join(CUTS)} for sessions, got {cut!r}")
    if clients > (most := int(np.count_nonzero(sessions.splits == TRAIN))):
        raise SettingsError(f"--clients: expected at most {most:,}, as there are training sessions, got {clients:,}")
    return keep_trained_clients(sessions, CUTS[cut](sessions, clients, seed), clients)


def measure_divergence(sessions: Sessions, clients: Int64) -> float:
    """Computes the Jaccard distance of the clients' training sessions."""
    return jaccard_distance(sessions.of_split(TRAIN), clients[sessions.splits == TRAIN])


def jaccard_distance(sessions: Sessions, clients: Int64, *, seed: int = 0) -> float:
    """Computes the mean Jaccard distance over pairs of clients.

    JD: the mean of 1 - |I_i and I_j| / |I_i or I_j|, I the items in a client's sessions. Of more than PAIRS pairs a
    sample is drawn; for one client it is 0.
    """
    # Paper: the formula of JD is an image that the text does not have; here: this reading of its name.
    count = int(clients.max()) + 1
    if count < 2:
        return 0.0
    owners = np.repeat(clients, sessions.lengths)
    having = mark_pairs(owners, sessions.clicks, (count, len(sessions.items)))
    first, second = np.triu_indices(count, k=1)
    if len(first) > PAIRS:
        chosen = np.random.default_rng(seed).choice(len(first), PAIRS, replace=False)
        first, second = first[chosen], second[chosen]
    both: Float64 = having[first].multiply(having[second]).sum(axis=1)
    sizes = np.diff(having.indptr)
    return float(np.mean(1.0 - both / (sizes[first] + sizes[second] - both)))


def divide_sessions(sessions: Sessions, clients: Int64) -> list[SessionShard]:
    """Builds a shard for each client, in the order of their numbers.

    Item numbers are those of all items' table. clients: (S,). A client's candidates are the items of its own sessions,
    held-out ones too: a shop knows its assortment.
    """
    order = np.argsort(clients, kind="stable")
    bounds = np.searchsorted(clients[order], np.arange(int(clients.max()) + 2))
    parts = (order[first:last] for first, last in pairwise(bounds))
    return [build_session_part(f"client-{place + 1}", sessions.select(rows)) for place, rows in enumerate(parts)]


def build_session_part(name: str, own: Sessions) -> SessionShard:
    """Builds one client's shard; places are the item numbers in `own`."""
    places, clicks = np.unique(own.clicks, return_inverse=True)
    ids = tuple(own.items[place] for place in places)
    return SessionShard(name, ids, clicks.astype(np.int64), own.starts, own.splits, places, notes=own.notes)
