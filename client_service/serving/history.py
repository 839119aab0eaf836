"""A user -> the items that a list for this user follows from."""

from __future__ import annotations

import numpy as np

from client_service.feedback.overlay import Overlay
from client_service.models.ranker import Rows
from client_service.shard import Shard


def history_rows(shard: Shard, overlay: Overlay, user: str) -> Rows:
    """Rows of the items liked since the shard was written, then of the training items; none of somebody unknown.

    Validation and test items are left out: they judge the list.
    """
    row, since = overlay.user_row(user), overlay.of(user)
    trained = np.zeros(0, dtype=np.int64) if row is None else _row_items(shard, row)
    return trained if since is None else np.concatenate([since.liked, np.setdiff1d(trained, since.liked)])


def _row_items(shard: Shard, row: int) -> Rows:
    starts = shard.train.indptr
    return shard.train.indices[starts[row] : starts[row + 1]].astype(np.int64)
