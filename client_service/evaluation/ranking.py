"""Measures ranked lists of all users against held-out items."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import top_columns
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import Counts, Hits, K, Measures, measure_hits
from client_service.models.ranker import Rows, pad_lists
from client_service.runtime.interruption import NEVER, Interrupt
from shared.cores import map_in_threads
from shared.method.parameters import Float32

CHUNK, LEAST_CHUNK = 256, 32  # users ranked at a time: at most, and at least with very many items
SCORES = 1 << 20  # scores that are ranked at a time, which fit into a processor's cache
VALIDATION_USERS = 2000

TopItems = Callable[[Rows, sparse.csr_array, int], Rows]
"""(users (B,), their items to leave out (B, N), k) -> item rows (B, k), best first, -1 beyond the last."""


def evaluate(top: TopItems, target: sparse.csr_array, seen: sparse.csr_array, users: Rows | None = None) -> Measures:
    """Measures the lists of all users with a target item, or of those among `users`.

    target: (M, N) held-out items. seen: (M, N) items that are no candidates.
    """
    return measure_hits(*find_hits(top, target, seen, users))


def find_hits(
    top: TopItems, target: sparse.csr_array, seen: sparse.csr_array, users: Rows | None = None
) -> tuple[Hits, Counts]:
    """Finds the hits of each user with a target item, and counts the target items.

    Returns hits (B, k) and counts (B,). `top` is called in several threads.
    """
    counts = np.diff(target.indptr)
    judged = np.flatnonzero(counts > 0) if users is None else users[counts[users] > 0]
    if len(judged) == 0:
        return np.zeros((0, K), dtype=bool), counts[judged]
    chunks = split_users(judged, target.shape[1])
    hits = map_in_threads(lambda chunk: list_hits(top(chunk, seen[chunk], K), target[chunk]), chunks)
    return np.concatenate(hits), counts[judged]


def split_users(users: Rows, items: int) -> list[Rows]:
    """Splits users into blocks that are ranked at a time."""
    step = min(CHUNK, max(LEAST_CHUNK, SCORES // items))
    return np.split(users, np.arange(step, len(users), step))


Candidates = Callable[[Rows], Iterable[Float32]]
"""(user rows (B,)) -> the scores of each of several candidates in turn, (B, N). The caller may overwrite an array; it
is valid until the next one, because all candidates share its memory."""


def find_candidate_hits(
    candidates: Candidates, target: sparse.csr_array, seen: sparse.csr_array, users: Rows, interrupt: Interrupt = NEVER
) -> tuple[list[Hits], Counts]:
    """Finds the hits of several candidates in one pass over the users.

    Returns as `find_hits` does, with a list of hits for each candidate.
    """
    counts = np.diff(target.indptr)
    judged = users[counts[users] > 0]

    def hits(rows: Rows) -> list[Hits]:
        interrupt.check()
        out, wanted, owners = seen[rows], mark_held_out(target, rows), np.arange(len(rows))[:, None]
        lists = (best_unseen(scores, out, K) for scores in candidates(rows))
        return [wanted[owners, ranked] & (ranked >= 0) for ranked in lists]

    found = map_in_threads(hits, split_users(judged, target.shape[1]))
    return [np.concatenate(one) for one in zip(*found, strict=True)], counts[judged]


def mark_held_out(target: sparse.csr_array, rows: Rows) -> NDArray[np.bool_]:
    """Marks the held-out items of these users in a mask (B, N)."""
    own = target[rows]
    found = np.zeros(own.shape, dtype=bool)
    found[np.repeat(np.arange(len(rows)), np.diff(own.indptr)), own.indices] = own.data > 0
    return found


def sample_validation_users(users: int, seed: int) -> Rows:
    """Samples at most 2,000 of M users, the same in every round."""
    rows = np.random.default_rng(seed).permutation(users)[:VALIDATION_USERS]
    return np.sort(rows).astype(np.int64)


def list_hits(ranked: Rows, target: sparse.csr_array) -> Hits:
    """Marks the ranked items that are held out, (B, k).

    Keys are unique pairs, looked up in the sorted target pairs.
    """
    width = target.shape[1] + 1
    rows = np.arange(len(ranked))[:, None]
    owner = np.repeat(np.arange(len(ranked)), np.diff(target.indptr))
    return np.isin(rows * width + np.where(ranked < 0, width - 1, ranked), owner * width + target.indices)


def measure_validation(shard: Shard, top: TopItems, users: Rows) -> Measures:
    """Measures lists on validation items; candidates are all items outside training."""
    return evaluate(top, shard.valid, shard.train, users)


def measure_test(shard: Shard, top: TopItems) -> Measures:
    """Measures the lists of all users on test items.

    Candidates are all items outside training and validation.
    """
    return evaluate(top, shard.test, sparse.csr_array(shard.train + shard.valid))


def rank_by_scores(scores: Callable[[Rows], NDArray[np.floating]]) -> TopItems:
    """Builds lists from a function that scores every item.

    scores: user rows (B,) -> (B, N).
    """

    def top(users: Rows, seen: sparse.csr_array, k: int) -> Rows:
        return best_unseen(np.array(scores(users), dtype=np.float32), seen, k)

    return top


def best_unseen(values: Float32, seen: sparse.csr_array, k: int) -> Rows:
    """Chooses the k best unseen columns of each row of scores (B, N).

    The scores are overwritten. seen: (B, N).
    """
    values[np.repeat(np.arange(len(values)), np.diff(seen.indptr)), seen.indices] = -np.inf
    chosen, best = top_columns(values, k)
    return pad_lists(np.where(np.isneginf(best), -1, chosen), k, -1)
