"""What the silo's page calls the things that it counts, by the task."""

from __future__ import annotations

from typing import NamedTuple


class Nouns(NamedTuple):
    """owner: whose data a shard is of. event: what training counts. judged: over what a measure is a mean."""

    owner: str
    event: str
    judged: str


USERS = Nouns("user", "training interaction", "user")
VISITS = Nouns("session", "training click", "click")
