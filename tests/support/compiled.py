"""Who answers for a shard in the test's own process, from compiled data and models in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from client_service.compilation import item_model
from client_service.compilation.shard import compile_in_memory
from client_service.compiled.model import CompiledModel, MappedLists
from client_service.data.interactions import Shard
from client_service.event_log.overlay import Overlay
from client_service.model_store.model_files import ServedItems
from client_service.serving.recommender import Recommender


class TrainedRecommender(Recommender):
    """Answers by the trained model that is put into `served`, which is compiled at once. lists: are those of the known
    users there too, exactly as the trained model has them?"""

    def __init__(self, shard: Shard, overlay: Overlay | None = None, *, lists: bool = True) -> None:
        super().__init__(compile_in_memory(shard) if overlay is None else overlay._shard, overlay)
        self._data, self._with_lists = shard, lists
        self._trained: ServedItems | None = None

    @property
    def served(self) -> Any:
        return self._trained

    @served.setter
    def served(self, served: ServedItems | None) -> None:
        self._trained, self.model = served, None if served is None else self._compile(served)

    def _compile(self, served: ServedItems) -> CompiledModel:
        model = item_model.compile_in_memory(served, self._data)
        if self._with_lists:
            model._lists = list_known_users(served, self._data, model.head.length)
        return model


def list_known_users(served: ServedItems, shard: Shard, length: int) -> MappedLists:
    """The exact lists of all known users."""
    rows = np.arange(len(shard.user_ids))
    known = shard.known_pairs.toarray() > 0
    items, scores = served.ranker.top_k_with_scores(served.ranker.users[rows], known, length)
    return MappedLists(items.astype(np.int32), scores, np.array([len(rows)], dtype=np.int64))
