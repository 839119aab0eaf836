"""Reads a silo's compiled visits and scores the next item.

The mapped arrays hold the items, what followed them, and the next-item model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays, errors_of_folder, folder_error, open_arrays
from client_service.compiled.session_network import NETWORK, TARGET, SessionNetwork
from client_service.compiled.texts import IdIndex, Texts
from client_service.compiled.weight_rows import WeightRows
from client_service.data.prefixes import Int64, Prefixes

KIND: Final = "sessions"
MODEL_KIND: Final = "model"
SCORES: Final = 1 << 18  # scores of transitions that are computed at a time
LEAST_SUM: Final = 1e-9  # least sum by which weights are divided to become shares
LEAST_PROBABILITY: Final = 1e-30  # smaller probabilities count as this one, so that their logarithm is finite
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class SessionsHead(BaseModel):
    """Description of the arrays of a compiled shard of visits.

    digest: digest of the visits, under which models are kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-sessions/1"] = "lpsfed-compiled-sessions/1"
    task: Literal["sessions"] = "sessions"
    name: str
    digest: str
    items: int
    titles: bool


class TransitionsHead(BaseModel):
    """Numbers that describe one set of transitions of `CompiledTransitions`.

    share: the weight of this set in the scores of all sets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    share: float
    decay: float
    repeats: float
    second: float
    popular: float


class NextModelHead(BaseModel):
    """Description of the arrays of a compiled next-item model.

    sessions: the digest of its visits. share: the network's share in the probability of an item, beside the
    transitions. network: the network's name, or None if transitions alone answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-next/1"] = "lpsfed-compiled-next/1"
    task: Literal["sessions"] = "sessions"
    version: str
    kept_at: str
    sessions: str
    network: Literal["srgnn", "tagnn"] | None
    share: float
    transitions: tuple[TransitionsHead, ...]


class CompiledSessions:
    """Items of a compiled shard of visits.

    popularity: how often each item was clicked, (N,). successors: how often each item came next after another. name:
    name of the compiled folder, "" for a shard that is only in memory.
    """

    def __init__(self, head: SessionsHead, arrays: Arrays, name: str = "") -> None:
        self.head, self.name = head, name
        self.item_ids, self.popularity = IdIndex(arrays, "items"), arrays["popularity"]
        self.titles = Texts(arrays, "titles") if head.titles else None
        titled = head.items if self.titles is None else len(self.titles)
        if {len(self.item_ids), len(self.popularity), titled} != {head.items}:
            raise ValueError(f"{head.items:,} items, got others")
        self.successors = WeightRows(arrays, "successors", head.items)

    @property
    def digest(self) -> str:
        """Digest of the visits."""
        return self.head.digest

    def title(self, row: int | None) -> str | None:
        """Looks up the title of an item; None for an unknown item or title."""
        return None if row is None or self.titles is None else self.titles[row]

    def count_successors(self, last: Int64) -> Float32:
        """Counts how often each item was clicked next after some items, (B, N)."""
        found = np.zeros((len(last), len(self.item_ids)), np.float32)
        owners, columns, counts = self.successors.select(last)
        found[owners, columns] = counts
        return found


def open_sessions(folder: Path) -> CompiledSessions:
    """Opens a compiled shard of visits.

    DataError, with what to do, for a damaged folder or one of another kind.
    """
    head, arrays = open_arrays(folder, SessionsHead)
    with errors_of_folder(folder):
        return CompiledSessions(head, arrays, folder.name)


class CompiledTransitions:
    """One set of transitions, which scores the items after a visit.

    The scores are those of `TransitionScores`. near: weights of the items that go with each item. scale: factors that
    make the rows of `near` add up to 1, (N,). popular: shares of all clicks, (N,).
    """

    def __init__(self, arrays: Arrays, place: int, count: int, numbers: TransitionsHead) -> None:
        self.near, self.numbers = WeightRows(arrays, f"near-{place}", count), numbers
        self.scale, self.popular = arrays[f"scale-{place}"], arrays[f"popular-{place}"]

    def score(self, examples: Prefixes) -> Float64:
        """Computes the probability that each item comes next, (B, N).

        Each row adds up to 1.
        """
        step = max(1, SCORES // len(self.popular))
        parts = (
            self._score_some(examples.select(np.arange(first, min(first + step, len(examples)))))
            for first in range(0, len(examples), step)
        )
        return np.concatenate(list(parts))

    def _score_some(self, examples: Prefixes) -> Float64:
        shape = (len(examples), len(self.popular))
        visits, items, weights = self._weigh_clicks(examples)
        owners, columns, near = self.near.select(items)
        found = _shares(_add_up(visits[owners], columns, near * weights[owners], shape))
        if self.numbers.second:
            rows, some = np.nonzero(found)
            owners, columns, near = self.near.select(some)
            walked = near * self.scale[some][owners] * found[rows, some][owners]
            further = _add_up(rows[owners], columns, walked, shape)
            further[visits, items] = 0.0  # two steps can lead back to the visit's items: `repeats` alone weighs these
            further *= self.numbers.second
            further += found
            found = _shares(further)
        found[visits, items] += self.numbers.repeats * weights
        found += self.numbers.popular * self.popular
        found /= found.sum(axis=1, keepdims=True)
        return found

    def _weigh_clicks(self, examples: Prefixes) -> tuple[Int64, Int64, Float64]:
        """Adds up the weights of the clicks on each distinct item of each visit.

        Returns visits, items and weights.
        """
        clicks, lengths = examples.pad()
        age = lengths[:, None] - 1 - np.arange(clicks.shape[1])
        inside = age >= 0
        count = len(self.popular)
        keys, places = np.unique(np.nonzero(inside)[0] * count + clicks[inside], return_inverse=True)
        weights = np.bincount(places, weights=self.numbers.decay ** age[inside], minlength=len(keys))
        return keys // count, keys % count, weights.astype(np.float64, copy=False)


def _add_up(rows: Int64, columns: Int64, values: NDArray[np.floating], shape: tuple[int, int]) -> Float64:
    """Adds up the values of each place of a matrix."""
    found = np.bincount(rows * shape[1] + columns, weights=values, minlength=shape[0] * shape[1])
    return found.astype(np.float64, copy=False).reshape(shape)


def _shares(weights: Float64) -> Float64:
    """Scales each row in place so that it adds up to 1; empty rows stay."""
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), LEAST_SUM)
    return weights


class CompiledNextModel:
    """Compiled next-item model, with the scores of the original model."""

    def __init__(self, head: NextModelHead, arrays: Arrays, count: int) -> None:
        """Takes the arrays of a compiled model.

        count: number of items that it scores. ValueError for arrays that do not fit the head.
        """
        self.head = head
        self.network: SessionNetwork | None = None
        if head.network is not None:
            names = (*NETWORK, TARGET) if head.network == "tagnn" else NETWORK
            self.network = SessionNetwork({name: arrays[name] for name in names}, arrays["vectors"])
            if len(self.network.vectors) != count:
                raise ValueError(f"vectors of {count:,} items, got {len(self.network.vectors):,}")
        self.transitions = tuple(
            CompiledTransitions(arrays, place, count, numbers) for place, numbers in enumerate(head.transitions)
        )
        if self.network is None and not self.transitions:
            raise ValueError("a network or transitions, got neither")

    @property
    def version(self) -> str:
        """Version that answers carry."""
        return self.head.version

    @property
    def kept_at(self) -> str:
        """Time when the model was kept on the disk, UTC, ISO 8601."""
        return self.head.kept_at

    def score(self, examples: Prefixes) -> Float32:
        """Scores all items after each visit, (B, N).

        With transitions, the scores are logarithms of probabilities.
        """
        if not self.transitions:
            assert self.network is not None
            return self.network.score(examples)
        found: Float64 = np.zeros((len(examples), len(self.transitions[0].popular)))
        for one in self.transitions:
            found += one.numbers.share * one.score(examples)
        if self.network is not None:
            found *= 1.0 - self.head.share
            found += self.head.share * probabilities(self.network.score(examples))
        mixed: Float32 = np.log(np.maximum(found, LEAST_PROBABILITY)).astype(np.float32)
        return mixed


def open_next_model(folder: Path, sessions: CompiledSessions) -> CompiledNextModel:
    """Opens a compiled next-item model of some visits.

    DataError for a damaged folder, and for a model of other visits.
    """
    head, arrays = open_arrays(folder, NextModelHead)
    if head.sessions != sessions.digest:
        raise folder_error(folder, "a model of the published visits, got one of other visits")
    with errors_of_folder(folder):
        return CompiledNextModel(head, arrays, len(sessions.item_ids))


def probabilities(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """Computes the softmax of each row."""
    powers: NDArray[np.floating] = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers
