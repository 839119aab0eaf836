"""Approximates a frozen model by one linear table of items.

The table holds what each item of a basket adds to the scores of all items.
Ranking by the table is linear: f(x) = x W + bias, W = sum of c_p L_p over the score's parts. Most parts are linear in
the basket. A part that solves for a user is linearised at usual baskets. c_p: weight of the part at baskets of usual
size. Shapes: M users, N items, B users or rows, q embedding width, K entries an item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.exact_scores import Growth
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.content import ContentWeights
from client_service.models.closed_form.ease import UserWeights
from client_service.models.closed_form.frequency import Frequency
from client_service.models.closed_form.full_spectrum import FullSpectrum
from client_service.models.closed_form.least_squares import LeastSquares
from client_service.models.closed_form.scorer_part import Code, ItemWeights, Scorer
from client_service.models.item_table import Factors
from client_service.models.low_pass import LowPass
from client_service.models.ranker import Rows, Side, join_sides
from client_service.models.score_fusion import row_deviations
from client_service.runtime.interruption import Interrupt
from shared.cores import map_in_threads
from shared.method.parameters import Float32

FIT_USERS, SIZE_USERS = 2048, 256  # training users to fit the map from baskets to users; to measure deviations
RIDGE = 1e-3  # ridge of the fitted map from a basket to a user, times the mean of the diagonal it is added to
BLOCK = 1 << 21  # numbers of the table that are computed at a time: 8 MB, and a few times as much in a thread
MOST_MADE = 1 << 22  # scores of users that are computed at a time
FEW_USERS = 1024  # most users for which EASE's weights are a product of two matrices of that rank
EVERY, SAMPLED = 8, 16  # one column of EVERY is sampled; rows shorter than SAMPLED times their entries are not sampled
UNIT_ROWS, LARGE = 64, 8.0  # rows by which the unit is chosen; their largest number in that unit
HIGHEST = 6e4  # largest number that is written in half precision
TIE = 1e-4  # share of a score's deviation by which popularity orders items that the basket says nothing about
SEED = 0
Entries = tuple[NDArray[np.integer], NDArray[np.float16]]
"""Columns and values of a table's entries, one row for each item."""


@dataclass(frozen=True)
class LinearPart:
    """Matrix c L of one part of the score.

    left, right: factors of a part of low rank, c L = left right^T, (N, r) each. rows: function that computes what is
    added to that product in some rows, (B, N).
    """

    left: Float32 | None = None
    right: Float32 | None = None
    rows: Callable[[Rows], Float32 | sparse.csr_array] | None = None


@dataclass(frozen=True)
class LinearModel:
    """Linear model of scores, as a sum of parts.

    f(x) = x W + bias, where W is the sum of the parts. bias: (N,). growth, bias_growth: how the factors of W and of the
    bias grow with a basket's size, so that the scores are as large as the model's own. sizes: how the deviation of each
    scorer's scores grows with a basket's size. unit: the number that W is divided by, so that half-precision numbers
    can hold it.
    """

    items: int
    parts: tuple[LinearPart, ...]
    bias: Float32
    growth: Growth
    bias_growth: Growth
    sizes: tuple[Growth, ...]
    unit: float = 1.0

    def blocks(self) -> list[Rows]:
        """Divides the table's rows into blocks that are computed at a time."""
        step = max(1, BLOCK // self.items)
        return [np.arange(first, min(first + step, self.items)) for first in range(0, self.items, step)]

    def make_rows(self, rows: Rows) -> Float32:
        """Computes some rows of W, (B, N), with a zero diagonal."""
        found = self._left[rows] @ self._right if self._left.shape[1] else np.zeros((len(rows), self.items), np.float32)
        for part in self.parts:
            if part.rows is None:
                continue
            more = part.rows(rows)
            if isinstance(more, sparse.csr_array):
                owners = np.repeat(np.arange(len(rows)), np.diff(more.indptr))
                found[owners, more.indices] += more.data * np.float32(1.0 / self.unit)
            else:
                found += more * np.float32(1.0 / self.unit)
        found[np.arange(len(rows)), rows] = 0.0
        return found

    def __post_init__(self) -> None:
        low = [(part.left, part.right) for part in self.parts if part.left is not None and part.right is not None]
        nothing = np.zeros((self.items, 0), np.float32)
        left = np.concatenate([nothing, *(one for one, _ in low)], axis=1)
        right = np.concatenate([nothing, *(one for _, one in low)], axis=1)
        object.__setattr__(self, "_left", left * np.float32(1.0 / self.unit))
        object.__setattr__(self, "_right", np.ascontiguousarray(right.T))

    _left: Float32 = None  # type: ignore[assignment]
    _right: Float32 = None  # type: ignore[assignment]


def fold_in(served: ServedItems, baskets: sparse.csr_array) -> Side:
    """Encodes users outside the graph by the rows of their items (B, N)."""
    rows = np.split(baskets.indices.astype(np.int64), baskets.indptr[1:-1])
    codes = served.ranker.fusion.encode(baskets)
    return join_sides([served.model.fold_in(one) for one in rows], codes)


def linearise(
    served: ServedItems, train: sparse.csr_array, popularity: Float32, interrupt: Interrupt
) -> LinearModel | None:
    """Approximates a model by sums over the items of a basket.

    None for a model without a base score, for other encoders than `LowPass` and `Factors`, and if no user has an item.
    train: (M, N), whose rows are the usual baskets. popularity: (N,), orders the items that no item of a basket adds
    to.
    """
    ranker, encoder = served.ranker, served.model.encoder
    known = np.flatnonzero(np.diff(train.indptr) > 0)
    if not ranker.residual or not len(known) or not isinstance(encoder, LowPass | Factors):
        return None
    users = np.random.default_rng(SEED).permutation(known)[:FIT_USERS]
    baskets = sparse.csr_array(train[users]).astype(np.float32)
    side, counts = fold_in(served, baskets), np.diff(baskets.indptr)[:SIZE_USERS]
    interrupt.check()
    few = np.arange(len(counts))
    some, sums = side[few], sparse.csr_array(baskets[few])
    fusion, items = ranker.fusion.parts, ranker.items.embedding
    features = encoder.item_step if isinstance(encoder, LowPass) else items
    base = _Mapped.fit(features, side.embedding, items, baskets)
    mapped = [
        _squares_part(part, code, baskets) if isinstance(part, LeastSquares) else None
        for (_, part), code in zip(fusion, side.codes, strict=True)
    ]
    spread = _measure_deviations(len(counts), len(popularity), lambda rows: some.embedding[rows] @ items.T)
    sizes = [
        _measure_deviations(len(counts), len(popularity), partial(_decode, part, code))
        for (_, part), code in zip(fusion, some.codes, strict=True)
    ]
    linear = [
        size if one is None else _measure_deviations(len(counts), len(popularity), partial(one.scores, sums))
        for one, size in zip(mapped, sizes, strict=True)
    ]
    of_base = _measure_deviations(len(counts), len(popularity), partial(base.scores, sums))
    summed = [not isinstance(part, Frequency) for _, part in fusion]
    loud = [(1.0, of_base), *((one, size) for (one, _), size, yes in zip(fusion, linear, summed, strict=True) if yes)]
    common = _common_size(loud)
    parts = [base.weighed(_weight(1.0, common, of_base))]
    for (loudness, part), one, size, yes in zip(fusion, mapped, linear, summed, strict=True):
        if yes:
            weight = _weight(loudness, common, size)
            parts.append(_linear_part(part, np.float32(weight)) if one is None else one.weighed(weight))
    scale = np.where(spread > 0, spread, 1.0)
    found = LinearModel(
        train.shape[1],
        tuple(parts),
        _bias(fusion, popularity),
        _fit_growth(scale / common, counts),
        _fit_growth(scale, counts),
        tuple(_fit_growth(size, counts) for size in sizes),
    )
    drawn = np.random.default_rng(SEED).permutation(found.items)[:UNIT_ROWS]
    unit = float(np.abs(found.make_rows(drawn)).max(initial=0.0)) / LARGE or 1.0
    growth = (found.growth[0] + float(np.log(unit)), found.growth[1])
    return replace(found, growth=growth, unit=unit)


@dataclass(frozen=True)
class _Mapped:
    """Linear approximation left right^T of a part that solves for a user.

    left: what each item of a basket adds to the user, (N, q). right: what the user is multiplied by, (N, q).
    """

    left: Float32
    right: Float32

    @classmethod
    def fit(cls, features: Float32, solved: Float32, items: Float32, baskets: sparse.csr_array) -> _Mapped:
        """Fits the approximation to the users that were solved for.

        features: (N, p), summed over a basket. solved: (B, q), the users of the baskets.
        """
        return cls(features @ _fit_map(features, baskets, solved), items)

    def scores(self, baskets: sparse.csr_array, rows: Rows) -> Float32:
        """Scores all items for some rows of the baskets."""
        found: Float32 = np.asarray(baskets[rows] @ self.left) @ self.right.T
        return found

    def weighed(self, weight: float) -> LinearPart:
        return LinearPart(self.left * np.float32(weight), self.right)


def _bias(fusion: tuple[tuple[float, Scorer], ...], popularity: Float32) -> Float32:
    """Computes the bias of all baskets' scores, in deviations of the base score, (N,)."""
    bias = np.zeros(len(popularity), np.float32)
    for loudness, part in fusion:
        if isinstance(part, Frequency) and (whole := float(part.row.std())) > 0:
            bias += np.float32(loudness / whole) * (part.row - part.row.mean())
    if not bias.any():
        bias = np.float32(TIE) * popularity / max(np.float32(1.0), popularity.max(initial=0.0))
    return bias.astype(np.float32)


def _decode(part: Scorer, code: Any, rows: Rows) -> Float32:
    return part.decode(code[rows])


def _measure_deviations(count: int, items: int, scores: Callable[[Rows], Float32]) -> NDArray[np.float64]:
    """Measures the deviation of each user's scores over the items, (B,).

    count: number of users. scores: computes the scores of some of them.
    """
    step = max(1, MOST_MADE // items)
    blocks = [np.arange(first, min(first + step, count)) for first in range(0, count, step)]
    return np.concatenate([row_deviations(scores(rows))[:, 0] for rows in blocks]).astype(np.float64)


def _common_size(weighed: list[tuple[float, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Computes the size by which all parts of a user's score are divided, (B,).

    This is the geometric mean of the parts' deviations, weighted by their loudness.
    """
    total, logs = 0.0, np.zeros(len(weighed[0][1]))
    for loudness, size in weighed:
        if (size > 0).any():
            logs += loudness * np.log(np.where(size > 0, size, np.exp(np.log(size[size > 0]).mean())))
            total += loudness
    return np.exp(logs / total) if total else np.ones(len(logs))


def _weight(loudness: float, common: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    """Computes the weight c_p of a part: its loudness over its usual relative size."""
    known = size > 0
    return loudness * float(np.exp(np.log(common[known] / size[known]).mean())) if known.any() else 0.0


def _fit_growth(size: NDArray[np.float64], counts: NDArray[np.integer]) -> Growth:
    """Fits the growth (a, b) of a size.

    The size is about exp(a + b log n) at n items.
    """
    known = size > 0
    if not known.any():
        return 0.0, 0.0
    logs, steps = np.log(size[known]), np.log(counts[known])
    slope = 0.0 if np.ptp(steps) == 0 else float(np.polyfit(steps, logs, 1)[0])
    return float(logs.mean() - slope * steps.mean()), slope


def _linear_part(part: Scorer, weight: np.float32) -> LinearPart:
    """Makes the matrix of a part that is linear in the basket."""
    if isinstance(part, FullSpectrum) and part.weights is None:
        left = part.entry[:, None] * part.low * part.response * weight
        return LinearPart(
            left, part.low * part.exit[:, None], lambda rows: _rows_above_low_frequencies(part, rows, weight)
        )
    if isinstance(part, ContentWeights):
        return LinearPart(part.left * weight, part.right)
    if isinstance(part, ItemWeights):
        return LinearPart(rows=lambda rows: part.weights[rows] * weight)
    if isinstance(part, UserWeights) and len(part.inverse) <= FEW_USERS:
        left = np.asarray(part.turned @ part.inverse) * weight
        return LinearPart(left, part.turned.toarray() * part.scale[:, None])  # without EASE's diagonal, as W has none

    def decode_rows(rows: Rows) -> Float32:
        count = _items_of(part)
        own = sparse.csr_array((np.ones(len(rows), np.float32), rows, np.arange(len(rows) + 1)), (len(rows), count))
        found: Float32 = part.decode(part.encode(own))
        return found * weight

    return LinearPart(rows=decode_rows)


def _items_of(part: Scorer) -> int:
    assert isinstance(part, UserWeights | FullSpectrum)
    return len(part.scale if isinstance(part, UserWeights) else part.entry)


def _rows_above_low_frequencies(part: FullSpectrum, rows: Rows, weight: np.float32) -> sparse.csr_array:
    """Computes some rows of a filter's part above its low frequencies."""
    found = sparse.csr_array(part.turned[rows] @ part.graph)
    owners = np.repeat(np.arange(len(rows)), np.diff(found.indptr))
    found.data = (found.data * part.exit[found.indices] * (part.entry[rows] * part.slope * weight)[owners]).astype(
        np.float32
    )
    return found


def _squares_part(part: LeastSquares, code: Code, baskets: sparse.csr_array) -> _Mapped:
    """Fits a linear approximation of weighted least squares.

    For each rank, a map leads from the sum of the basket's vectors to the vector that is solved for.
    """
    ends = np.cumsum(part.ranks)[:-1]
    pairs = zip(np.split(part.items, ends, axis=1), np.split(np.asarray(code), ends, axis=1), strict=True)
    left = [vectors @ _fit_map(vectors, baskets, solved) for vectors, solved in pairs]
    return _Mapped(np.concatenate(left, axis=1), part.items)


def _fit_map(features: Float32, baskets: sparse.csr_array, solved: Float32) -> Float32:
    """Fits the matrix (p, q) from a basket's summed features to its user's direction.

    features: (N, p). solved: users that were solved for, (B, q). The fit is by least squares in which all baskets
    count alike, whatever their size.
    """
    counts = np.diff(baskets.indptr)
    summed: Float32 = np.asarray(baskets @ features)
    sums, target = (_divide_by_usual_length(one, counts) for one in (summed, solved))
    gram = sums.T @ sums
    gram[np.diag_indices(len(gram))] += RIDGE * np.trace(gram) / len(gram) + np.finfo(np.float64).tiny
    found: Float32 = np.linalg.solve(gram, sums.T @ target).astype(np.float32)
    return found


def _divide_by_usual_length(rows: Float32, counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """Divides rows by the usual length of rows of baskets of the same size."""
    start, slope = _fit_growth(np.linalg.norm(rows.astype(np.float64), axis=1), counts)
    usual = np.exp(start + slope * np.log(counts))
    found: NDArray[np.float64] = rows / usual[:, None]
    return found


def strongest_entries(model: LinearModel, count: int, interrupt: Interrupt) -> Entries:
    """Selects the `count` entries of each row of W that are furthest from 0.

    Columns and values are (N, count) each, the columns ascending. Negative entries count too, since they take popular
    items from a list.
    """
    columns = np.empty((model.items, count), column_type(model.items))
    values = np.empty((model.items, count), np.float16)

    def keep(rows: Rows) -> None:
        interrupt.check()
        found = model.make_rows(rows)
        chosen = np.sort(_find_furthest(np.abs(found), count), axis=1)
        columns[rows], values[rows] = chosen, to_half(np.take_along_axis(found, chosen, 1))

    map_in_threads(keep, model.blocks())
    return columns, values


def fewer_entries(entries: Entries, count: int) -> Entries:
    """Selects the `count` entries of each row that are furthest from 0."""
    columns, values = entries
    chosen = np.sort(_find_furthest(np.abs(values.astype(np.float32)), count), axis=1)
    return np.take_along_axis(columns, chosen, 1), np.take_along_axis(values, chosen, 1)


def _find_furthest(sizes: Float32, count: int) -> Rows:
    """Finds the columns of the `count` largest numbers of each row, (B, count)."""
    width = sizes.shape[1]
    if width < SAMPLED * count:
        return np.argpartition(sizes, width - count, axis=1)[:, width - count :]
    # The threshold is taken from a sample, with a margin: the numbers above it are nearly always enough, and are only
    # about a tenth of a row.
    share = 2 * count // EVERY + 8
    sample = sizes[:, ::EVERY]
    least = np.partition(sample, sample.shape[1] - share, axis=1)[:, sample.shape[1] - share]
    found = np.empty((len(sizes), count), dtype=np.int64)
    for place, (row, above) in enumerate(zip(sizes, least, strict=True)):
        columns = np.flatnonzero(row > above)
        if len(columns) < count:
            columns = np.arange(width)
        values = row[columns]
        found[place] = columns[np.argpartition(values, len(values) - count)[len(values) - count :]]
    return found


def column_type(items: int) -> type[np.uint16] | type[np.int32]:
    """Chooses the narrowest integer type for the rows of a number of items."""
    return np.uint16 if items <= 1 << 16 else np.int32


def to_half(values: Float32) -> NDArray[np.float16]:
    """Converts numbers to half precision, after it clips them to HIGHEST."""
    return np.clip(values, -HIGHEST, HIGHEST, out=values).astype(np.float16)


def all_entries(model: LinearModel, interrupt: Interrupt) -> NDArray[np.float16]:
    """Computes the whole table W, (N, N)."""
    values = np.empty((model.items, model.items), np.float16)

    def keep(rows: Rows) -> None:
        interrupt.check()
        values[rows] = to_half(model.make_rows(rows))

    map_in_threads(keep, model.blocks())
    return values
