"""Generator of click sessions of a chain of shops, with a planted Markov chain.

It plants: items are of kinds, and after one kind another is likely, in all shops alike. A shop's own counts show what
followed an item that was clicked often; that items of a kind are followed alike has to be learnt.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.prefixes import Int64
from client_service.data.sessions import TEST, TRAIN, VALID
from simulation.datasets.synthetic import KINDS, QUALITIES, THINGS
from simulation.sessions.sessions import Sessions

KINDS_OF_ITEMS = 40
HABIT = 0.8  # probability that the next click is on the kind that follows; else any item is clicked, by popularity
STEPS_ON = 0.78  # probability of a further click
LONGEST = 12
HELD_OUT = 0.15  # of the sessions, for validation and as many for testing
POPULARITY = 0.8  # exponent of the power law


def generate_sessions(seed: int, *, sessions: int = 8000, items: int = 1000) -> Sessions:
    """Generates sessions of 2 to LONGEST clicks, the same for the same seed."""
    rng = np.random.default_rng(seed)
    number = min(KINDS_OF_ITEMS, items)
    kinds = rng.permutation(np.arange(items) % number)  # each has some
    follows = rng.permutation(number)
    weights = np.arange(1, items + 1, dtype=float) ** -POPULARITY
    of_kind = np.cumsum(np.where(kinds == follows[:, None], weights, 0.0), axis=1)  # of the kind that follows each
    popular = np.cumsum(weights)
    lengths = np.clip(1 + rng.geometric(1.0 - STEPS_ON, sessions), 2, LONGEST)
    clicks = np.zeros((sessions, LONGEST), dtype=np.int64)
    clicks[:, 0] = _draw_items(np.broadcast_to(popular, (sessions, items)), rng)
    for step in range(1, LONGEST):
        habitual = rng.random(sessions) < HABIT
        weighed = np.where(habitual[:, None], of_kind[kinds[clicks[:, step - 1]]], popular)
        clicks[:, step] = _draw_items(weighed, rng)
    inside = np.arange(LONGEST) < lengths[:, None]
    drawn = rng.random(sessions)
    splits = np.where(drawn < HELD_OUT, TEST, np.where(drawn < 2 * HELD_OUT, VALID, TRAIN)).astype(np.int8)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Sessions("clicks", clicks[inside], starts, splits, [f"item-{number:04d}" for number in range(items)])


def _draw_items(cumulative: NDArray[np.float64], rng: np.random.Generator) -> Int64:
    """Draws one item a row, by its cumulative weights."""
    drawn = rng.random((len(cumulative), 1)) * cumulative[:, -1:]
    found: Int64 = (cumulative <= drawn).sum(axis=1)
    return found


def title_items(items: list[str]) -> pl.DataFrame:
    """Makes a title for each generated item."""
    words = ((QUALITIES, 1), (KINDS, 10), (THINGS, 100))
    titles = [
        " ".join(names[number // step % len(names)].capitalize() for names, step in words)
        for number in range(len(items))
    ]
    return pl.DataFrame({"item": items, "title": titles})
