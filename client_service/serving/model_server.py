"""Objects that answer by a model implement one interface, which training and the service use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from client_service.compiled.publication import Publication


class ModelServer:
    """Server of one model at a time.

    Switching is one assignment: a request sees the old model or the new one. served: the model that answers, of the
    task's own class; None before the first. overlay: what the event log changes in answers; None in a task without
    events. changing: lock held while another model is put in place and on disk. known_users: number of users with a
    list of their own. shown_items: number of items that can be answered. lists_share: share of the known users whose
    lists are computed. score_meaning: of an answered item.
    """

    score_meaning: str
    served: Any = None
    overlay: Any = None

    def __init__(self) -> None:
        self.changing = threading.Lock()

    @property
    def known_users(self) -> int:
        return 0

    @property
    def shown_items(self) -> int:
        return 0

    @property
    def lists_share(self) -> float:
        return 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a background computation runs, such as that of lists."""
        return False

    def with_model(self, serving: Path, published: Publication) -> ModelServer:
        """Returns a server of another published model of the same shard.

        That is this object, or one that replaces it. serving: the folder of published files. Raises DataError for a
        damaged folder, or one of another shard.
        """
        raise NotImplementedError

    def set_fallback(self, before: ModelServer) -> None:
        """Sets the former server, which helps until this one is warm.

        By default nothing happens.
        """

    def drop_fallback(self) -> None:
        """Drops the fallback once it is needed no more; by default there is none."""

    def close(self) -> None:
        """Ends background computations; by default there are none."""
