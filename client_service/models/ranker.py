"""A model at rest, in numpy arrays, ranks items: by the cheap base score first, by the full score where it counts.

AnswerService from arrays that nothing changes is what lets recommendations go on while the model trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products, top_columns
from client_service.models.score_fusion import Codes, Fusion, deviation, take_codes
from shared.method.parameters import Float32

Rows = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

CANDIDATES = 2000  # of these at most the full score is computed
BLOCK = 1 << 22  # pairs x width that are scored at a time: 16 MB
CHUNK = 64  # items that the MLP scores in one product: always as many, so that a score's last bits do not depend on k


@dataclass(frozen=True)
class Predictor:
    """The predictive MLP, its first layer split: on_both (d, d), output (d,), bias ()."""

    on_both: Float32
    output: Float32
    bias: np.float32

    @property
    def reach(self) -> float:
        """The MLP's part of f lies within bias +- reach, since |tanh| <= 1."""
        return float(np.abs(self.output).sum())


@dataclass(frozen=True)
class Side:
    """Rows of users or of items: embedding (R, q) with degree scale and alpha in it, narrow (R, d), hidden (R, d).

    Users come with what a fusion's parts know of their baskets.
    """

    embedding: Float32
    narrow: Float32
    hidden: Float32
    codes: Codes = ()

    def __getitem__(self, rows: Rows) -> Side:
        return Side(self.embedding[rows], self.narrow[rows], self.hidden[rows], take_codes(self.codes, rows))

    def by_columns(self) -> Side:
        """The same, its embedding laid out so that one row times all of these reads memory three times as fast."""
        return replace(self, embedding=np.asfortranarray(self.embedding))


def join_sides(sides: Sequence[Side], codes: Codes) -> Side:
    """The rows of several sides under each other; codes: of all of them."""
    embedding, narrow, hidden = zip(*((one.embedding, one.narrow, one.hidden) for one in sides), strict=True)
    return Side(np.concatenate(embedding), np.concatenate(narrow), np.concatenate(hidden), codes)


@dataclass(frozen=True)
class Ranker:
    """A model at rest. Every method is a pure function of arrays."""

    users: Side
    items: Side
    predictor: Predictor
    residual: bool
    fusion: Fusion = field(default_factory=Fusion)

    def fused(self, fusion: Fusion, codes: Codes) -> Ranker:
        """The same, ranking with these closed-form scores beside its own; codes: of the users' training items."""
        return replace(self, users=replace(self.users, codes=codes), fusion=fusion)

    def top(self, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        """The k best items of the users in `rows`, (B, k), without `seen` (B, N); -1 where there are no more."""
        return self.top_scored(self.users[rows], _dense(seen), k)[0]

    def top_scored(self, users: Side, excluded: NDArray[np.bool_], k: int) -> tuple[Rows, Float32]:
        """Item rows and scores f, both (B, k), best first, of equal scores the first row; -1 and -inf where there are
        no more."""
        base = self._base(users)
        base[excluded] = -np.inf
        chosen = self._candidates(base, k)
        scores = np.take_along_axis(base, chosen, 1) + self._correction(users, chosen)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ranked, scores = np.take_along_axis(chosen, order, 1), np.take_along_axis(scores, order, 1)
        return fill_lists(np.where(np.isneginf(scores), -1, ranked), k, -1), fill_lists(scores, k, -np.inf)

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """f of some items (B, n) for each of the users in `rows` (B,)."""
        users = self.users[rows]
        return np.take_along_axis(self._base(users), columns, 1) + self._correction(users, columns)

    def _base(self, users: Side) -> Float32:
        """alpha d_u^a d_i^b <u, v>, (B, N): one GEMM; and what a fusion adds to it."""
        if not self.residual:
            return np.zeros((len(users.embedding), len(self.items.embedding)), dtype=np.float32)
        return self.fusion.added(inner_products(users.embedding, self.items.embedding), users.codes)

    def _candidates(self, base: Float32, k: int) -> Rows:
        """Columns whose full score can reach the top k, (B, n), at most CANDIDATES of them, ascending.

        An item further than twice the MLP's reach below the k-th best base score cannot catch up, so that nothing is
        lost unless the limit cuts. Without a base path every item is one.
        """
        count = base.shape[1]
        if not self.residual or count <= k:
            return np.broadcast_to(np.arange(count), base.shape)
        best, scores = top_columns(base, k)
        kth = scores[:, -1]
        able = (base >= (kth - 2.0 * self.predictor.reach)[:, None]).sum(1).max()
        size = int(min(max(able, k), max(CANDIDATES, k), count))
        return np.sort(best if size == k else top_columns(base, size)[0], axis=1)

    def _correction(self, users: Side, chosen: Rows) -> Float32:
        """The predictive MLP's part of f at the chosen columns, (B, n)."""
        if self.predictor.reach == 0.0:
            return np.full(chosen.shape, self.predictor.bias, dtype=np.float32)
        step = max(1, BLOCK // (chosen.shape[1] * self.items.narrow.shape[1]))
        parts = [self._mlp(users[rows], chosen[rows]) for rows in _blocks(len(chosen), step)]
        return np.concatenate(parts)

    def _mlp(self, users: Side, chosen: Rows) -> Float32:
        """w tanh(W (u * v) + hidden_u + hidden_v) + b, with W (u * v) as v (W diag u)^T: (B, n)."""
        count = chosen.shape[1]
        filled = -(-count // CHUNK) * CHUNK
        chosen = fill_lists(chosen, filled, 0).reshape(len(chosen), -1, CHUNK)
        turned = users.narrow[:, :, None] * self.predictor.on_both.T  # (B, d, d)
        hidden = self.items.narrow[chosen] @ turned[:, None] + self.items.hidden[chosen]
        hidden += users.hidden[:, None, None, :]
        part: Float32 = np.tanh(hidden, out=hidden) @ self.predictor.output + self.predictor.bias
        return part.reshape(len(chosen), -1)[:, :count]


def fill_lists(lists: NDArray[Number], k: int, value: float) -> NDArray[Number]:
    """Lists (B, n) made k wide with `value`, where there are fewer than k items."""
    # np.pad does the same and takes fifteen times as long on a list or two: this is done for every request.
    wide = np.full((len(lists), max(k, lists.shape[1])), value, dtype=lists.dtype)
    wide[:, : lists.shape[1]] = lists
    return wide


def _dense(seen: sparse.csr_array) -> NDArray[np.bool_]:
    mask = np.zeros(seen.shape, dtype=bool)
    mask[np.repeat(np.arange(seen.shape[0]), np.diff(seen.indptr)), seen.indices] = True
    return mask


def _blocks(length: int, step: int) -> list[Rows]:
    return [np.arange(start, min(start + step, length)) for start in range(0, length, step)]


@runtime_checkable
class BasketSum(Protocol):
    """A scorer whose scores of a basket are sums over its items."""

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """What each item of a basket (b,) adds to the scores of the items `columns` (n,), (b, n)."""
        ...


def contributions(ranker: Ranker, user: Side, basket: Rows, columns: Rows) -> Float32 | None:
    """The same of all such parts as loud as they are in the score of this user (one row), (b, n).

    basket: the items of which `user` has its codes. None where the score has no such part, or the basket no item.
    """
    parts = [
        (loudness, part, code)
        for (loudness, part), code in zip(ranker.fusion.parts, user.codes, strict=True)
        if isinstance(part, BasketSum)
    ]
    if not ranker.residual or not parts or len(basket) == 0:
        return None
    spread = float(deviation(user.embedding @ ranker.items.embedding.T)[0, 0]) or 1.0  # as the fusion itself has it
    total = np.zeros((len(basket), len(columns)), dtype=np.float32)
    for loudness, part, code in parts:
        size = float(deviation(part.decode(code))[0, 0])
        if size > 0:
            total += np.float32(loudness * spread / size) * part.contributions(basket, columns)
    return total
