"""Ranker: a frozen model in numpy arrays that ranks items.

It ranks by base score first, then by full score. The full score is computed only for items that can reach the list.
Arrays that no longer change answer recommendations while the model trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import inner_products, top_columns
from client_service.models.score_fusion import Codes, Fusion, row_deviations, select_codes
from shared.method.parameters import Float32

Rows = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

CANDIDATES = 2000  # most items whose full score is computed
BLOCK = 1 << 22  # pairs x width that are scored at a time: 16 MB
CHUNK = 64  # items that the MLP scores in one product: always as many, so that a score's last bits do not depend on k


@dataclass(frozen=True)
class Predictor:
    """Frozen predictive MLP, with its first layer split.

    on_both (d, d), output (d,), bias ().
    """

    on_both: Float32
    output: Float32
    bias: np.float32

    @property
    def reach(self) -> float:
        """Largest deviation of the MLP's part of f from the bias.

        The part lies within bias +- reach, since |tanh| <= 1.
        """
        return float(np.abs(self.output).sum())


@dataclass(frozen=True)
class Side:
    """Frozen rows of users or of items.

    embedding (R, q) with degree scale and alpha in it, narrow (R, d), hidden (R, d). Users also have the codes of their
    baskets for each part of a fusion.
    """

    embedding: Float32
    narrow: Float32
    hidden: Float32
    codes: Codes = ()

    def __getitem__(self, rows: Rows) -> Side:
        return Side(self.embedding[rows], self.narrow[rows], self.hidden[rows], select_codes(self.codes, rows))

    def column_major(self) -> Side:
        """Returns the side with its embedding laid out by columns.

        One row times all of these then reads memory three times as fast.
        """
        return replace(self, embedding=np.asfortranarray(self.embedding))


def join_sides(sides: Sequence[Side], codes: Codes) -> Side:
    """Stacks the rows of several sides; codes: of all of them."""
    embedding, narrow, hidden = zip(*((one.embedding, one.narrow, one.hidden) for one in sides), strict=True)
    return Side(np.concatenate(embedding), np.concatenate(narrow), np.concatenate(hidden), codes)


@dataclass(frozen=True)
class Ranker:
    """Frozen model; every method is a pure function of arrays."""

    users: Side
    items: Side
    predictor: Predictor
    residual: bool
    fusion: Fusion = field(default_factory=Fusion)

    def with_fusion(self, fusion: Fusion, codes: Codes) -> Ranker:
        """Returns the ranker with closed-form scores beside its own; codes: of the users' training items."""
        return replace(self, users=replace(self.users, codes=codes), fusion=fusion)

    def top(self, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        """Returns the k best unseen items of the users in `rows`, (B, k).

        seen: (B, N). -1 if there are no more.
        """
        return self.top_k_with_scores(self.users[rows], _dense(seen), k)[0]

    def top_k_with_scores(self, users: Side, excluded: NDArray[np.bool_], k: int) -> tuple[Rows, Float32]:
        """Returns item rows and scores f of the k best, both (B, k), best first.

        Of equal scores the first row comes first; -1 and -inf where there are no more.
        """
        base = self._base(users)
        base[excluded] = -np.inf
        chosen = self._candidates(base, k)
        scores = np.take_along_axis(base, chosen, 1) + self._correction(users, chosen)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ranked, scores = np.take_along_axis(chosen, order, 1), np.take_along_axis(scores, order, 1)
        return pad_lists(np.where(np.isneginf(scores), -1, ranked), k, -1), pad_lists(scores, k, -np.inf)

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Computes f of some items (B, n) for each of the users in `rows` (B,)."""
        users = self.users[rows]
        return np.take_along_axis(self._base(users), columns, 1) + self._correction(users, columns)

    def _base(self, users: Side) -> Float32:
        """Computes the base scores with the fusion's part, (B, N): one GEMM.

        alpha d_u^a d_i^b <u, v>, and the fusion's scores.
        """
        if not self.residual:
            return np.zeros((len(users.embedding), len(self.items.embedding)), dtype=np.float32)
        return self.fusion.add_to(inner_products(users.embedding, self.items.embedding), users.codes)

    def _candidates(self, base: Float32, k: int) -> Rows:
        """Returns columns whose full score can reach the top k, (B, n).

        They are ascending, and at most CANDIDATES. An item further than twice the MLP's reach below the k-th best base
        score cannot catch up, so that nothing is lost unless the limit cuts. Without a base path every item is a
        candidate.
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
        """Computes the predictive MLP's part of f at the chosen columns, (B, n)."""
        if self.predictor.reach == 0.0:
            return np.full(chosen.shape, self.predictor.bias, dtype=np.float32)
        step = max(1, BLOCK // (chosen.shape[1] * self.items.narrow.shape[1]))
        parts = [self._mlp(users[rows], chosen[rows]) for rows in _blocks(len(chosen), step)]
        return np.concatenate(parts)

    def _mlp(self, users: Side, chosen: Rows) -> Float32:
        """Computes the predictive MLP at the chosen columns of a block of users, (B, n).

        w tanh(W (u * v) + hidden_u + hidden_v) + b, with W (u * v) as v (W diag u)^T.
        """
        count = chosen.shape[1]
        filled = -(-count // CHUNK) * CHUNK
        chosen = pad_lists(chosen, filled, 0).reshape(len(chosen), -1, CHUNK)
        turned = users.narrow[:, :, None] * self.predictor.on_both.T  # (B, d, d)
        hidden = self.items.narrow[chosen] @ turned[:, None] + self.items.hidden[chosen]
        hidden += users.hidden[:, None, None, :]
        part: Float32 = np.tanh(hidden, out=hidden) @ self.predictor.output + self.predictor.bias
        return part.reshape(len(chosen), -1)[:, :count]


def pad_lists(lists: NDArray[Number], k: int, value: float) -> NDArray[Number]:
    """Pads lists (B, n) with `value` to a width of k."""
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
        """Computes each basket item's summand in the scores of some items, (b, n).

        basket: (b,). columns: (n,).
        """
        ...


def contributions(ranker: Ranker, user: Side, basket: Rows, columns: Rows) -> Float32 | None:
    """Computes each basket item's summand in the fused scores of one user, (b, n).

    basket: the items from which `user` (one row) has its codes. Each part counts with its weight in the score. None
    if the score has no part that is such a sum, or the basket no item.
    """
    parts = [
        (loudness, part, code)
        for (loudness, part), code in zip(ranker.fusion.parts, user.codes, strict=True)
        if isinstance(part, BasketSum)
    ]
    if not ranker.residual or not parts or len(basket) == 0:
        return None
    spread = float(row_deviations(user.embedding @ ranker.items.embedding.T)[0, 0]) or 1.0  # as in `Fusion.add_to`
    total = np.zeros((len(basket), len(columns)), dtype=np.float32)
    for loudness, part, code in parts:
        size = float(row_deviations(part.decode(code))[0, 0])
        if size > 0:
            total += np.float32(loudness * spread / size) * part.contributions(basket, columns)
    return total
