"""Held-out items -> what users prefer whatever is popular, what they accept of a list, and how alike they become.

Shapes: M users, N items, k items a list. Nothing here looks at a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data import Shard
from shared.method.graph import Float64, degrees, power

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Users:
    """preference (M, N): chance that a user accepts an item at the top of a list; partner (M,): who is most alike."""

    preference: Float64
    partner: Rows


def observe_users(shard: Shard) -> Users:
    """The users of a shard, by their validation and test items: what they came to like by themselves.

    An item of these is accepted for certain when it is seen first; another one by its mean cosine with them, over the
    training columns. A cosine divides by both degrees, so that a popular item is no better liked for being popular.
    """
    held_out = sparse.csr_array(shard.valid + shard.test)
    _, by_item = degrees(shard.train)
    columns = shard.train @ sparse.diags_array(power(by_item, -0.5))
    likeness = (columns.T @ columns).toarray()
    counts = np.maximum(np.diff(held_out.indptr), 1)[:, None]
    preference = (held_out @ likeness) / counts
    preference[held_out.nonzero()] = 1.0
    return Users(np.clip(preference, 0.0, 1.0), most_alike(preference))


def most_alike(preference: Float64) -> Rows:
    """(M,): for each user the other one with the largest cosine of preferences (Appendix F.1). It is fixed throughout:
    who resembles whom is not the recommender's doing."""
    rows = preference / np.maximum(np.linalg.norm(preference, axis=1, keepdims=True), 1e-12)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -np.inf)
    partners: Rows = np.argmax(cosine, axis=1)
    return partners


def accept_items(lists: Rows, preference: Float64, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Lists (M, k), best first, -1 where there are no more -> users (E,) and items (E,) of what is accepted.

    The chance is the preference times 1 / log2(rank + 1): an item further down is seen less often. The draws belong to
    the places of the lists, so that two recommenders meet users in the same mood.
    """
    seen = 1.0 / np.log2(np.arange(2, lists.shape[1] + 2))
    chance = np.take_along_axis(preference, np.maximum(lists, 0), axis=1) * seen
    users, places = np.nonzero((rng.random(lists.shape) < chance) & (lists >= 0))
    return users.astype(np.int64), lists[users, places]


def jaccard_index(interactions: sparse.csr_array, partner: Rows) -> Float64:
    """(M,): items that a user and its partner share over the items that either has (Appendix F.1)."""
    sizes = np.asarray(interactions.sum(axis=1)).ravel()
    common = np.asarray(interactions.multiply(interactions[partner]).sum(axis=1)).ravel()
    indices: Float64 = common / np.maximum(sizes + sizes[partner] - common, 1.0)
    return indices
