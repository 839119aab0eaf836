"""A silo of visits as answers need it: its items, what followed them, and the next-item model, as mapped arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays, folder_error, open_arrays
from client_service.compiled.session_network import NETWORK, TARGET, SessionNetwork
from client_service.compiled.texts import IdIndex, Texts
from client_service.data.prefixes import Int64, Prefixes

KIND: Final = "sessions"
MODEL_KIND: Final = "model"
SCORES: Final = 1 << 18  # of transitions that are computed at a time
LEAST_SUM: Final = 1e-9  # of weights that become shares
LEAST_PROBABILITY: Final = 1e-30  # whose logarithm is a number
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class SessionsHead(BaseModel):
    """What the arrays of a compiled shard of visits are of. digest: of the visits, under which models are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-sessions/1"] = "lpsfed-compiled-sessions/1"
    task: Literal["sessions"] = "sessions"
    name: str
    digest: str
    items: int
    titles: bool


class TransitionsHead(BaseModel):
    """The numbers of one set of transitions: see `CompiledTransitions`. share: of it in the scores of all sets."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    share: float
    decay: float
    repeats: float
    second: float
    popular: float


class NextModelHead(BaseModel):
    """What the arrays of a compiled next-item model are of.

    sessions: the digest of its visits. share: of the network in the probability of an item beside the transitions.
    network: its name, None where transitions alone answer.
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


class WeightRows:
    """A sparse matrix of weights (N, N), by its rows."""

    def __init__(self, arrays: Arrays, name: str, count: int) -> None:
        self.indptr, self.indices = arrays[f"{name}-indptr"], arrays[f"{name}-indices"]
        self.weights: Float32 = arrays[f"{name}-weights"]
        if len(self.indptr) != count + 1 or {len(self.indices), len(self.weights)} != {int(self.indptr[-1])}:
            raise ValueError(f"weights of {count:,} rows in {name}-*.npy, got others")

    def select(self, rows: Int64) -> tuple[Int64, Int64, Float32]:
        """The entries of some rows: at which place of `rows` each stands, its column and its weight."""
        starts, lengths = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        owners = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = starts[owners] + within
        return owners, self.indices[places].astype(np.int64), self.weights[places]


class CompiledSessions:
    """The items of a shard of visits. popularity: how often each was clicked, (N,); successors: what came next.

    name: of the compiled folder, "" in memory alone.
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
        """Of the visits."""
        return self.head.digest

    def title(self, row: int | None) -> str | None:
        """Of an item, where one is known."""
        return None if row is None or self.titles is None else self.titles[row]

    def count_successors(self, last: Int64) -> Float32:
        """How often each item was clicked next after these, (B, N)."""
        found = np.zeros((len(last), len(self.item_ids)), np.float32)
        owners, columns, counts = self.successors.select(last)
        found[owners, columns] = counts
        return found


def open_sessions(folder: Path) -> CompiledSessions:
    """Opens a compiled shard of visits. DataError for a damaged or another folder, which says what to do."""
    head, arrays = open_arrays(folder, SessionsHead)
    with _damage_told(folder):
        return CompiledSessions(head, arrays, folder.name)


@contextmanager
def _damage_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise folder_error(folder, f"a file {error.args[0]}.npy, got none") from None
    except ValueError as error:
        raise folder_error(folder, str(error)) from None


class CompiledTransitions:
    """One set of transitions scores the items after a visit, as `TransitionScores` does.

    near: what goes with each item. scale: makes its rows add up to 1, (N,). popular: shares of all clicks, (N,).
    """

    def __init__(self, arrays: Arrays, place: int, count: int, numbers: TransitionsHead) -> None:
        self.near, self.numbers = WeightRows(arrays, f"near-{place}", count), numbers
        self.scale, self.popular = arrays[f"scale-{place}"], arrays[f"popular-{place}"]

    def score(self, examples: Prefixes) -> Float64:
        """How likely each item comes next, by rows that add up to 1, (B, N)."""
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
            further[visits, items] = 0.0  # two steps lead back to the visit's own items, whose weight is `repeats`
            further *= self.numbers.second
            further += found
            found = _shares(further)
        found[visits, items] += self.numbers.repeats * weights
        found += self.numbers.popular * self.popular
        found /= found.sum(axis=1, keepdims=True)
        return found

    def _weigh_clicks(self, examples: Prefixes) -> tuple[Int64, Int64, Float64]:
        """Each visit's distinct items with the sum of their clicks' weights: visits, items and weights."""
        clicks, lengths = examples.pad()
        age = lengths[:, None] - 1 - np.arange(clicks.shape[1])
        inside = age >= 0
        count = len(self.popular)
        keys, places = np.unique(np.nonzero(inside)[0] * count + clicks[inside], return_inverse=True)
        weights = np.bincount(places, weights=self.numbers.decay ** age[inside], minlength=len(keys))
        return keys // count, keys % count, weights.astype(np.float64, copy=False)


def _add_up(rows: Int64, columns: Int64, values: NDArray[np.floating], shape: tuple[int, int]) -> Float64:
    """The sum of the values of each place of a matrix."""
    found = np.bincount(rows * shape[1] + columns, weights=values, minlength=shape[0] * shape[1])
    return found.astype(np.float64, copy=False).reshape(shape)


def _shares(weights: Float64) -> Float64:
    """Rows that add up to 1, or have nothing."""
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), LEAST_SUM)
    return weights


class CompiledNextModel:
    """A next-item model at rest. Its scores are those of the model that was compiled."""

    def __init__(self, head: NextModelHead, arrays: Arrays, count: int) -> None:
        """count: of the items that it scores."""
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
        """That its answers carry."""
        return self.head.version

    @property
    def kept_at(self) -> str:
        """When it was kept on the disk, UTC, ISO 8601."""
        return self.head.kept_at

    def score(self, examples: Prefixes) -> Float32:
        """Scores of all items after each visit, (B, N): with transitions, logarithms of probabilities."""
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
    """Opens a compiled next-item model of these visits. DataError for a damaged folder, or one of other visits."""
    head, arrays = open_arrays(folder, NextModelHead)
    if head.sessions != sessions.digest:
        raise folder_error(folder, "a model of the visits that answer, got one of others")
    with _damage_told(folder):
        return CompiledNextModel(head, arrays, len(sessions.item_ids))


def probabilities(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """Softmax of each row."""
    powers: NDArray[np.floating] = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers
