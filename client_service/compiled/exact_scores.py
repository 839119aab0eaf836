"""Scores baskets with a model's own arrays, in numpy.

A score is the base score, the fused closed forms, and the predictive MLP's part.
Shapes: N items, M users, n items of a basket, q embedding width, d width of the MLPs, c columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays
from shared.method.parameters import Float32

Rows = NDArray[np.int64]
Growth = tuple[float, float]
"""(a, b) of exp(a + b log n), a number that grows as a power of a basket's size n."""
CHUNK = 64  # items that the MLP scores in one product: the last bits of a score do not depend on the number of items
LEAK = 0.2  # slope of NGCF's activation below zero
Fold = Literal["low_pass", "convolutions", "least_squares"]
PartKind = Literal["weights", "users", "filter", "squares", "frequency", "content"]


def grow(growth: Growth, size: int) -> float:
    """Computes exp(a + b log n) for a basket of n items."""
    return float(np.exp(growth[0] + growth[1] * np.log(max(1, size))))


class PartHead(BaseModel):
    """Description of one closed form of the fusion.

    size: the deviation of its scores over the items, as it grows with the basket's size.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: PartKind
    loudness: float
    size: Growth
    numbers: dict[str, float] = {}
    ranks: tuple[int, ...] = ()


class ExactHead(BaseModel):
    """Description of the arrays of exact scores.

    fold: how a basket becomes a user. mlps: does a head pool and predict? residual: is there a base score beside the
    MLP? convolutions: L of the encoder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    fold: Fold
    mlps: bool
    residual: bool
    width: int
    convolutions: int
    alpha: float
    normalising: float = 0.0
    scale: float = 0.0
    preference: bool = False
    parts: tuple[PartHead, ...] = ()


class BasketUser(NamedTuple):
    """User vectors that a basket is folded into.

    embedding: (q,), multiplied by the scale and alpha. narrow: (d,). hidden: (d,).
    """

    embedding: Float32
    narrow: Float32
    hidden: Float32


class ScoredPart(Protocol):
    """Closed form that scores a basket, for all items or at some columns."""

    def scores(self, basket: Rows) -> Float32: ...
    def scores_at(self, basket: Rows, columns: Rows) -> Float32: ...
    def contributions(self, basket: Rows, columns: Rows) -> Float32: ...


class SparseRows(NamedTuple):
    """Entries of a sparse matrix by rows."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    data: Float32

    def gather(self, rows: Rows) -> tuple[Rows, NDArray[Any], Float32]:
        """Collects the entries of some rows: their places in `rows`, columns and values."""
        starts = self.indptr[rows].astype(np.int64)
        lengths = self.indptr[rows + 1].astype(np.int64) - starts
        owners = np.repeat(np.arange(len(rows)), lengths)
        places = np.arange(len(owners)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return owners, self.indices[places], self.data[places]

    def sum_rows(self, rows: Rows, weights: Float32, width: int) -> Float32:
        """Adds up some rows with weights, (width,)."""
        owners, columns, values = self.gather(rows)
        return np.bincount(columns, values * weights[owners], minlength=width).astype(np.float32)

    def owners(self) -> Rows:
        """Lists the row of each entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def products(self, rows: Rows, vector: Float32) -> Float32:
        """Multiplies each of some rows by a vector, (rows,)."""
        owners, columns, values = self.gather(rows)
        return np.bincount(owners, values * vector[columns], minlength=len(rows)).astype(np.float32)


def _open_lists(arrays: Arrays, name: str) -> SparseRows:
    return SparseRows(*(arrays[f"{name}-{part}"] for part in ("indptr", "indices", "data")))


class WeightsPart:
    """Closed form f = x B with the weights B (N, N)."""

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        del head
        self._weights = arrays[f"{name}-weights"]

    def scores(self, basket: Rows) -> Float32:
        found: Float32 = self._weights[basket].sum(axis=0, dtype=np.float32)
        return found

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self.contributions(basket, columns).sum(axis=0)
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self._weights[np.ix_(basket, columns)]
        return found


class UsersPart:
    """EASE by the inverse over the users.

    f = x - (x - x X^T K X) scale, with the inverse K (M, M).
    """

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        del head
        self._inverse, self._scale = arrays[f"{name}-inverse"], arrays[f"{name}-scale"]
        self._graph, self._turned = _open_lists(arrays, f"{name}-graph"), _open_lists(arrays, f"{name}-turned")

    @cached_property
    def _owners(self) -> Rows:
        return self._graph.owners()

    def scores(self, basket: Rows) -> Float32:
        weights = self._graph.data * self._reach_users(basket)[self._owners]
        explained = np.bincount(self._graph.indices, weights, minlength=len(self._scale)).astype(np.float32)
        found: Float32 = explained * self._scale
        found[basket] += 1 - self._scale[basket]
        return found

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        own = np.isin(columns, basket)
        explained = self._turned.products(columns, self._reach_users(basket))
        found: Float32 = explained * self._scale[columns] + own * (1 - self._scale[columns])
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        rows = [self.scores_at(basket[place : place + 1], columns) for place in range(len(basket))]
        return np.stack(rows)

    def _reach_users(self, basket: Rows) -> Float32:
        """Computes x X^T K, (M,)."""
        _, users, values = self._turned.gather(basket)
        common = np.bincount(users, values, minlength=len(self._inverse)).astype(np.float32)
        some = np.flatnonzero(common)
        found: Float32 = common[some] @ self._inverse[some]
        return found


class FilterPart:
    """Filter over the full spectrum.

    f = x D^-a W D^a / (1 - diag W), W = V diag(h - c s^2) V^T + c R^T R with a zero diagonal.
    """

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        self._slope = np.float32(head.numbers["slope"])
        self._entry, self._exit, self._own, self._low, self._response = (
            arrays[f"{name}-{part}"] for part in ("entry", "exit", "own", "low", "response")
        )
        self._graph, self._turned = _open_lists(arrays, f"{name}-graph"), _open_lists(arrays, f"{name}-turned")

    def scores(self, basket: Rows) -> Float32:
        found: Float32 = self._low @ self._code(basket)
        users, reach = self._users(basket)
        found += self._slope * self._graph.sum_rows(users, reach, len(found))
        found[basket] -= self._entry[basket] * self._own[basket]
        found *= self._exit
        return found

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self._low[columns] @ self._code(basket)
        users, reach = self._users(basket)
        every = np.zeros(len(self._graph.indptr) - 1, dtype=np.float32)
        every[users] = reach
        found += self._slope * self._turned.products(columns, every)
        found -= np.isin(columns, basket) * self._entry[columns] * self._own[columns]
        found *= self._exit[columns]
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        rows = [self.scores_at(basket[place : place + 1], columns) for place in range(len(basket))]
        return np.stack(rows)

    def _code(self, basket: Rows) -> Float32:
        found: Float32 = (self._entry[basket] @ self._low[basket]) * self._response
        return found

    def _users(self, basket: Rows) -> tuple[Rows, Float32]:
        """Finds the users who have an item of the basket, and their x D^-a R^T."""
        owners, users, values = self._turned.gather(basket)
        weights = values * self._entry[basket][owners]
        reach = np.bincount(users, weights, minlength=1).astype(np.float32)
        some = np.flatnonzero(reach)
        return some, reach[some]


class SquaresPart:
    """Weighted least squares of a basket, averaged over several ranks.

    f = w V^T, where w solves the least squares.
    """

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        self._items = arrays[f"{name}-items"]
        self._turned = [arrays[f"{name}-turned-{place}"] for place in range(len(head.ranks))]
        self._shared = [arrays[f"{name}-shared-{place}"] for place in range(len(head.ranks))]
        self._axes = [arrays[f"{name}-axes-{place}"] for place in range(len(head.ranks))]
        self._absent, self._ridge = head.numbers["absent"], head.numbers["ridge"]

    def scores(self, basket: Rows) -> Float32:
        found: Float32 = self._items @ self._code(basket)
        return found

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self._items[columns] @ self._code(basket)
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Computes v_i A^-1 v_j, where A is the basket's system."""
        total = np.zeros((len(basket), len(columns)), dtype=np.float32)
        for turned, shared in zip(self._turned, self._shared, strict=True):
            own = turned[basket]
            total += own @ np.linalg.solve(self._system(own, shared), turned[columns].T)
        return total / np.float32(len(self._turned))

    def _code(self, basket: Rows) -> Float32:
        found = []
        for turned, shared, axes in zip(self._turned, self._shared, self._axes, strict=True):
            own = turned[basket]
            found.append(axes @ np.linalg.solve(self._system(own, shared), own.sum(axis=0)))
        return np.concatenate(found).astype(np.float32) / np.float32(len(found))

    def _system(self, own: Float32, shared: Float32) -> Float32:
        strength = np.float32(self._ridge * (len(own) + self._absent * len(self._items)))
        system: Float32 = own.T @ own
        system[np.diag_indices(len(shared))] += shared + strength
        return system


class ContentPart:
    """Closed form f = x L R^T with low-rank matrices L and R, (N, d)."""

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        del head
        self._left, self._right = arrays[f"{name}-left"], arrays[f"{name}-right"]

    def scores(self, basket: Rows) -> Float32:
        found: Float32 = self._right @ self._left[basket].sum(axis=0)
        return found

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self._right[columns] @ self._left[basket].sum(axis=0)
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        found: Float32 = self._left[basket] @ self._right[columns].T
        return found


class FrequencyPart:
    """Popularity score f = log(1 + degree), the same for all baskets."""

    def __init__(self, arrays: Arrays, name: str, head: PartHead) -> None:
        del head
        self._row = arrays[f"{name}-row"]

    def scores(self, basket: Rows) -> Float32:
        del basket
        return self._row

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        del basket
        found: Float32 = self._row[columns]
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Returns zeros, since no item of the basket adds anything."""
        return np.zeros((len(basket), len(columns)), dtype=np.float32)


PARTS: dict[PartKind, Callable[[Arrays, str, PartHead], ScoredPart]] = {
    "weights": WeightsPart,
    "users": UsersPart,
    "filter": FilterPart,
    "squares": SquaresPart,
    "frequency": FrequencyPart,
    "content": ContentPart,
}


class ExactScorer:
    """Scorer of baskets by a frozen model's arrays."""

    def __init__(self, arrays: Arrays, head: ExactHead) -> None:
        self.head = head
        self._items = arrays["item-embedding"]
        self.parts = [(one, PARTS[one.kind](arrays, f"part-{place}", one)) for place, one in enumerate(head.parts)]
        folds = {"low_pass": self._low_pass, "convolutions": self._convolve, "least_squares": self._solve}
        self._fold = folds[head.fold]
        if head.fold == "low_pass":
            self._step = arrays["fold-step"]
            self._coefficients = _open_all(arrays, "fold-coefficients", head.convolutions + 1)
        elif head.fold == "convolutions":
            self._layers = _open_all(arrays, "fold-layer", head.convolutions + 1)
            self._power = arrays["fold-power"]
            self._on_sum, self._on_product = arrays["fold-sum"], arrays["fold-product"]
        else:
            self._unseen = arrays["fold-unseen"]
        self._gram = arrays["item-gram"] if head.residual else None
        if head.mlps:
            self._mlps = {
                name: arrays[f"mlp-{name}"]
                for name in ("in", "in-bias", "out", "out-bias", "on-user", "on-both", "output", "bias")
            }
            self._preference = arrays["mlp-preference"] if head.preference else None
            self.reach = float(np.abs(self._mlps["output"]).sum())
            if self.reach > 0.0:
                self._narrow, self._hidden = arrays["item-narrow"], arrays["item-hidden"]
        else:
            self.reach = 0.0

    def user(self, basket: Rows) -> BasketUser:
        """Computes the vectors of the user who has these items."""
        layers = self._fold(basket)
        head, nothing = self.head, np.zeros(0, dtype=np.float32)
        if not head.mlps:
            return BasketUser(layers[-1], nothing, nothing)
        pooled = self._pool(layers)
        if self._preference is not None:
            pooled = pooled + self._preference
        narrow = pooled[: head.width]
        size = np.float32(head.alpha * max(1, len(basket)) ** head.scale)
        return BasketUser(pooled * size, narrow, self._mlps["on-user"] @ narrow)

    def scores(self, basket: Rows, user: BasketUser) -> Float32:
        """Scores all items by the base score and the fused closed forms, (N,)."""
        if not self.head.residual:
            return np.zeros(len(self._items), dtype=np.float32)
        base: Float32 = self._items @ user.embedding
        if not self.parts:
            return base
        spread = _deviation(base) or 1.0
        for head, part in self.parts:
            scores = part.scores(basket)
            if (size := _deviation(scores)) > 0.0:
                base += np.float32(head.loudness * spread / size) * (scores - scores.mean())
        return base

    def scores_at(self, basket: Rows, user: BasketUser, columns: Rows) -> Float32:
        """Scores some columns (c,) by the base score and the fused closed forms.

        These scores differ from `scores` by one shift of all. The deviation of each part's scores over the items is
        taken to be the usual one for baskets of this size.
        """
        found: Float32 = self._items[columns] @ user.embedding
        for weight, part in self._weighted_parts(basket, user):
            found += weight * part.scores_at(basket, columns)
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Computes what each item of the basket adds to some scores, (n, c).

        Only the parts of the fusion that are sums over the basket count.
        """
        total = np.zeros((len(basket), len(columns)), dtype=np.float32)
        if len(basket):
            for weight, part in self._weighted_parts(basket, self.user(basket)):
                total += weight * part.contributions(basket, columns)
        return total

    def correction(self, user: BasketUser, columns: Rows) -> Float32:
        """Computes the predictive MLP's part of f at some columns, (c,)."""
        if not self.head.mlps:
            return np.zeros(len(columns), dtype=np.float32)
        mlps = self._mlps
        if self.reach == 0.0:
            return np.full(len(columns), mlps["bias"], dtype=np.float32)
        filled = np.zeros(-(-len(columns) // CHUNK) * CHUNK, dtype=np.int64)
        filled[: len(columns)] = columns
        turned = user.narrow[:, None] * mlps["on-both"].T
        hidden = self._narrow[filled].reshape(-1, CHUNK, len(turned)) @ turned
        hidden += self._hidden[filled].reshape(hidden.shape) + user.hidden
        part: Float32 = np.tanh(hidden, out=hidden) @ mlps["output"] + mlps["bias"]
        return part.reshape(-1)[: len(columns)]

    def _weighted_parts(self, basket: Rows, user: BasketUser) -> list[tuple[np.float32, ScoredPart]]:
        assert self._gram is not None
        variance = float(user.embedding.astype(np.float64) @ self._gram @ user.embedding)
        spread = np.sqrt(max(variance, 0.0)) or 1.0
        weights = (np.float32(one.loudness * spread / grow(one.size, len(basket))) for one, _ in self.parts)
        return [(weight, part) for weight, (_, part) in zip(weights, self.parts, strict=True)]

    def _pool(self, layers: list[Float32]) -> Float32:
        """Pools the layers of a user as `PooledMLPs.pool` does.

        The result is the MLP's output. A model with a base score adds the mean of the layers.
        """
        mlps, width = self._mlps, self.head.width
        hidden = np.tanh(mlps["in"] @ np.concatenate([layer[:width] for layer in layers]) + mlps["in-bias"])
        pooled: Float32 = mlps["out"] @ hidden + mlps["out-bias"]
        if not self.head.residual:
            return pooled
        mean: Float32 = np.stack(layers).mean(axis=0)
        mean[:width] += pooled
        return mean

    def _low_pass(self, basket: Rows) -> list[Float32]:
        basis = self._step[basket].sum(axis=0) / np.float32(max(1, len(basket)) ** self.head.normalising)
        return [basis @ one for one in self._coefficients]

    def _convolve(self, basket: Rows) -> list[Float32]:
        degree = max(1, len(basket))
        reach = self._power[basket] / np.float32(np.sqrt(degree))
        layers = [self._layers[0][basket].sum(axis=0) / np.float32(degree)]
        for number, layer in enumerate(self._layers[:-1]):
            near, own = reach @ layer[basket], layers[-1]
            found = (near + own) @ self._on_sum[number] + (near * own) @ self._on_product[number]
            layers.append(np.where(found > 0, found, np.float32(LEAK) * found))
        return layers

    def _solve(self, basket: Rows) -> list[Float32]:
        own = self._items[basket].astype(np.float64)
        return [np.linalg.solve(own.T @ own + self._unseen, own.sum(axis=0)).astype(np.float32)]


def _open_all(arrays: Arrays, name: str, count: int) -> list[Float32]:
    return [arrays[f"{name}-{place}"] for place in range(count)]


def _deviation(scores: Float32) -> float:
    centred = scores - scores.mean()
    return float(np.sqrt(centred @ centred / np.float32(len(centred))))
