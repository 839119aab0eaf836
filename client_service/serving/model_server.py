"""Objects that answer by a model implement one interface, which training and the service use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from client_service.compiled.publication import Publication


class ModelServer:
    """Answers from one model at a time. Putting in another is one assignment: a request sees the old or the new.

    served: the model that answers, of the task's own class; None before there is one. overlay: what the event log
    changes in answers; None in a task without events. changing: held by who puts another model in place and on the
    disk. known_users: how many get a list of their own. shown_items: how many can be answered. lists_share: share of
    the known users whose lists are computed. score_meaning: of an answered item.
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
        """Tells whether something goes on in the background, such as the computation of lists."""
        return False

    def with_model(self, serving: Path, published: Publication) -> ModelServer:
        """Returns what answers by another published model of the same shard: this object, or one that replaces it.

        serving: the folder of published files. Raises DataError for a damaged folder, or one of another shard.
        """
        raise NotImplementedError

    def set_fallback(self, before: ModelServer) -> None:
        """Lets the object that answered before this one help until this one is warm; by default nothing does."""

    def drop_fallback(self) -> None:
        """Drops the fallback once it is needed no more; by default there is none."""

    def close(self) -> None:
        """Ends what goes on in the background; by default nothing does."""
