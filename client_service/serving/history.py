"""A user -> the items that a list for this user follows from."""

from __future__ import annotations

import numpy as np

from client_service.feedback.overlay import Overlay
from client_service.feedback.since import Since
from client_service.models.ranker import Rows
from client_service.serving.exclusions import items_of_row
from client_service.shard import Shard


def history_rows(shard: Shard, overlay: Overlay, user: str) -> Rows:
    """Rows of the items liked since the shard was written, then of the training items; none of somebody unknown.

    Validation and test items are left out: they judge the list.
    """
    row, since = overlay.user_row(user), overlay.of(user)
    liked = np.zeros(0, dtype=np.int64) if since is None else since.liked
    return np.concatenate([liked, np.setdiff1d(basket_since(shard, row, since), liked)])


def basket_since(shard: Shard, row: int | None, since: Since | None) -> Rows:
    """Rows of all items that a user likes, ascending: those of his row, and what has come since, of which the latest
    counts."""
    trained = items_of_row(shard.train, row)
    return trained if since is None else np.union1d(np.setdiff1d(trained, since.disliked), since.liked)


def changes_basket(shard: Shard, row: int, since: Since) -> bool:
    """Does the user like other items than those of his row? What he has seen alone changes nothing of that."""
    return len(since.liked) > 0 or bool(np.isin(since.disliked, items_of_row(shard.train, row)).any())
