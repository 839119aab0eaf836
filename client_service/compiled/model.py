"""Ranks items by a silo's compiled model.

The mapped arrays hold an item table, lists of the known users, and the meaning of scores.
Shapes: M users, N items, L items of a list, n items of a basket, K entries an item, q directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays, folder_error, map_array, open_arrays
from client_service.compiled.cold_items import LISTED, ColdHead, ColdItems
from client_service.compiled.exact_scores import ExactHead, ExactScorer, Growth, grow
from client_service.compiled.publication import SHORT
from client_service.compiled.shard import CompiledShard
from client_service.compiled.top_items import top_of_row
from shared.method.parameters import Float32

FORMAT: Final = "lpsfed-compiled-model/1"
KIND: Final = "model"
LENGTH: Final = 200  # items of a list, so that some are left after the filters of a request
FIRST: Final = 40  # items of a list that are also kept apart, so that most answers touch a fifth of the memory
RESCORED: Final = 200  # least number of a table's best items that are scored again
QUICK_ENTRIES: Final = 1 << 17  # entries of a basket's items that a table adds up in some 0.5 ms
CANDIDATES: Final = 2000  # most items whose MLP part is computed, unless more are asked for
Form = Literal["dense", "truncated", "rescored", "exact"]
Rows = NDArray[np.int64]
Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Relevance:
    """Logistic map from scores f to relevance in [0, 1].

    relevance = 1 / (1 + exp(-(slope f + intercept))). slope is positive, so that the order of items stays.
    """

    slope: float
    intercept: float

    def apply(self, scores: Float32) -> Float64:
        """Computes the relevance of scores f of any shape."""
        logits = scores.astype(np.float64) * self.slope + self.intercept
        small: Float64 = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, small) / (1.0 + small)


UNFITTED = Relevance(1.0, 0.0)  # for a model without validation items to fit a relevance to


class TableHead(BaseModel):
    """Description of an item table.

    entries: number of entries of each item; 0: all. growth, bias_growth: how the factors of the sum and of the bias
    grow with a basket's size. rescored: are the best items scored again exactly? few: number of items below which
    a basket is ranked exactly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    entries: int
    growth: Growth
    bias_growth: Growth
    rescored: bool = False
    few: int = 0


class CompiledModelHead(BaseModel):
    """Description of the arrays of a compiled model.

    lists_digest: digest of the shard's data. ranked_by: digest of the arrays that rank known users' lists. entries,
    few: see `TableHead`; entries is None without a table. first: items of a list that are also kept apart, none by an
    earlier version. why: how the form was chosen. chosen_for, chosen_pairs: the
    parts of the model and the number of training pairs that the form was chosen for, so that a later model of the same
    parts need not choose again. relevance: meaning of the lists' scores. basket_relevance: meaning of baskets' scores.
    cold: None in a silo whose items have no text. cold_relevance: meaning of cold items' scores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-model/1"] = FORMAT
    version: str
    kept_at: str
    lists_digest: str
    ranked_by: str
    users: int
    items: int
    length: int
    first: int = 0
    form: Form
    entries: int | None
    few: int
    why: str
    chosen_for: str
    chosen_pairs: int
    relevance: Relevance
    basket_relevance: Relevance
    table: TableHead | None
    exact: ExactHead | None
    cold: ColdHead | None = None
    cold_relevance: Relevance = UNFITTED


class RankedItems(NamedTuple):
    """Rows of items, best first, and their scores.

    Unfilled places have the row -1 and the score -inf.
    """

    rows: Rows
    scores: Float32


class EntryTable:
    """Item table that scores a basket by a sum of rows, and a bias."""

    def __init__(self, arrays: Arrays, head: TableHead) -> None:
        self.head, self._bias, self._values = head, arrays["table-bias"], arrays["table-values"]
        self._columns = arrays["table-columns"] if head.entries else None
        self.items = len(self._bias)
        expected = (self.items, self.width)
        columns = expected if self._columns is None else self._columns.shape
        if self._values.shape != expected or columns != expected:
            raise ValueError(f"a table of {expected[0]:,} x {expected[1]:,} numbers, got another")

    @property
    def width(self) -> int:
        """Number of entries of an item."""
        return self.head.entries or self.items

    def scores(self, basket: Rows) -> Float32:
        """Scores all items for a basket, (N,)."""
        values = self._values[basket]
        if self._columns is None:
            found: Float32 = np.add.reduce(values, axis=0, dtype=np.float32)
        else:
            # The types that bincount works with: when bincount converts them itself, it takes three times as long.
            columns, weights = self._columns[basket].astype(np.intp), values.astype(np.float64)
            found = np.bincount(columns.ravel(), weights.ravel(), minlength=self.items).astype(np.float32)
        found *= np.float32(grow(self.head.growth, len(basket)))
        found += self._bias * np.float32(grow(self.head.bias_growth, len(basket)))
        return found

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Computes what each item of the basket (n,) adds to some scores, (n, c).

        columns: the items with these scores, (c,).
        """
        size = np.float32(grow(self.head.growth, len(basket)))
        if self._columns is None:
            return self._values[np.ix_(basket, columns)].astype(np.float32) * size
        places = np.full(self.items, -1, dtype=np.int64)
        places[columns] = np.arange(len(columns))
        known = places[self._columns[basket]]
        owners, entries = np.nonzero(known >= 0)
        found = np.zeros((len(basket), len(columns)), dtype=np.float32)
        found[owners, known[owners, entries]] = self._values[basket][owners, entries].astype(np.float32) * size
        return found


class BasketRanker:
    """Ranks items for baskets by a table, by exact scores, or by both.

    By both: the table's best items are scored again exactly.
    """

    def __init__(self, arrays: Arrays, table: TableHead | None, exact: ExactHead | None) -> None:
        self._table = None if table is None else EntryTable(arrays, table)
        self._exact = None if exact is None else ExactScorer(arrays, exact)
        if self._exact is None and (table is None or table.rescored or table.few):
            raise ValueError("the arrays of exact scores, got none")

    def rank(self, basket: Rows, excluded: Mask | Rows, k: int) -> RankedItems:
        """Ranks the k best items for a basket.

        Of equal scores the first rows come first, so that a shorter list is the beginning of a longer one.
        """
        table = self._table_for(basket)
        if table is None:
            return self._rank_exactly(basket, excluded, k)
        scores = table.scores(basket)
        scores[excluded] = -np.inf
        if not table.head.rescored:
            return _fill_up(*top_of_row(scores, k), k)
        chosen, best = top_of_row(scores, max(k, RESCORED))
        chosen = np.sort(chosen[np.isfinite(best)])
        return _best_of(chosen, self.scores_at(basket, chosen), k)

    def is_quick(self, basket: Rows) -> bool:
        """Checks if a basket is ranked in less than a millisecond."""
        table = self._table_for(basket)
        return table is not None and not table.head.rescored and len(basket) * table.width <= QUICK_ENTRIES

    def scores_at(self, basket: Rows, columns: Rows) -> Float32:
        """Computes the scores of some items (c,), by which `rank` orders them."""
        table, exact = self._table_for(basket), self._exact
        if table is not None and not table.head.rescored:
            return table.scores(basket)[columns]
        assert exact is not None
        user = exact.user(basket)
        if table is None:
            return exact.scores(basket, user)[columns] + exact.correction(user, columns)
        return exact.scores_at(basket, user, columns) + exact.correction(user, columns)

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Computes what each item of the basket (n,) adds to some scores, (n, c).

        columns: the items with these scores, (c,).
        """
        table = self._table_for(basket)
        if table is not None and not table.head.rescored:
            return table.contributions(basket, columns)
        assert self._exact is not None
        return self._exact.contributions(basket, columns)

    def _table_for(self, basket: Rows) -> EntryTable | None:
        """Returns the table if baskets of this size are ranked by it, else None."""
        table = self._table
        return None if table is None or len(basket) < table.head.few else table

    def _rank_exactly(self, basket: Rows, excluded: Mask | Rows, k: int) -> RankedItems:
        assert self._exact is not None
        exact, user = self._exact, self._exact.user(basket)
        scores = exact.scores(basket, user)
        scores[excluded] = -np.inf
        chosen = np.sort(self._candidates(scores, k))
        return _best_of(chosen, scores[chosen] + exact.correction(user, chosen), k)

    def _candidates(self, scores: Float32, k: int) -> Rows:
        """Finds the items that can be among the k best after the MLP's correction.

        The MLP changes a score by its reach at most.
        """
        exact, count = self._exact, len(scores)
        assert exact is not None
        if not exact.head.residual or count <= k:
            return np.arange(count)
        rows, best = top_of_row(scores, k)
        if exact.reach == 0.0:
            return rows
        able = int(np.count_nonzero(scores >= best[-1] - 2.0 * exact.reach))
        return top_of_row(scores, min(max(able, k), max(CANDIDATES, k), count))[0]


class MappedLists(NamedTuple):
    """Lists of the known users, which a trainer fills row by row.

    items, scores: (M, L). ready: (1,), the number of first rows that are filled. cold_items, cold_scores: the best cold
    items, (M, LISTED), None in a silo without them. first_items, first_scores: the first columns of items and scores,
    (M, FIRST), None in the files of an earlier version.
    """

    items: NDArray[np.int32]
    scores: Float32
    ready: NDArray[np.int64]
    cold_items: NDArray[np.int32] | None = None
    cold_scores: Float32 | None = None
    first_items: NDArray[np.int32] | None = None
    first_scores: Float32 | None = None


class CompiledModel:
    """Compiled model that answers for known users and for baskets.

    Large arrays are mapped. Processes share them, and only the trainer writes them. form: the form of answers to
    baskets. why: how the form was chosen. relevance: meaning of the lists' scores. basket_relevance: meaning of
    baskets' scores. directions: rows (N, q) of length one, by which similar items are found. cold: what cold items are
    scored by, None in a silo whose items have no text. cold_relevance: meaning of their scores.
    """

    def __init__(self, head: CompiledModelHead, arrays: Arrays, lists: MappedLists | None = None) -> None:
        """Takes the arrays of a compiled model.

        lists: None in a silo that keeps no lists. ValueError for arrays that do not fit the head.
        """
        self.head, self._lists = head, lists
        self.version, self.kept_at, self.shard = head.version, head.kept_at, head.lists_digest
        self.form, self.why = head.form, head.why
        self.relevance, self.basket_relevance = head.relevance, head.basket_relevance
        self.directions: Float32 = arrays["directions"]
        self.cold_relevance = head.cold_relevance
        self.cold = None if head.cold is None else ColdItems(arrays, head.cold, head.items)
        self._baskets = BasketRanker(arrays, head.table, head.exact)
        if len(self.directions) != head.items:
            raise ValueError(f"directions of {head.items:,} items, got {len(self.directions):,}")

    @property
    def lists_ready(self) -> int:
        """Number of users whose lists are filled, which are the first rows."""
        return 0 if self._lists is None else int(self._lists.ready[0])

    def list_of(self, row: int) -> tuple[NDArray[np.int32], Float32] | None:
        """Looks up the best items of a known user, and their scores.

        The items come best first, without the items that the user has interacted with. Unfilled places have the row
        -1. None while the list is not filled yet.
        """
        lists = self._lists
        return None if lists is None or row >= lists.ready[0] else (lists.items[row], lists.scores[row])

    def first_of(self, row: int) -> tuple[NDArray[np.int32], Float32] | None:
        """Looks up the first items of `list_of`, FIRST or all, and their scores."""
        lists = self._lists
        if lists is None or lists.first_items is None or lists.first_scores is None:
            return self.list_of(row)
        return None if row >= lists.ready[0] else (lists.first_items[row], lists.first_scores[row])

    def cold_list_of(self, row: int) -> tuple[NDArray[np.int32], Float32] | None:
        """Returns the best cold items of a known user, and their scores.

        None as from `list_of`.
        """
        lists = self._lists
        if lists is None or lists.cold_items is None or lists.cold_scores is None or row >= lists.ready[0]:
            return None
        return lists.cold_items[row], lists.cold_scores[row]

    def rank_basket(self, basket: Rows, excluded: Mask | Rows, k: int) -> RankedItems:
        """Ranks the k best items for a basket, without the excluded ones.

        excluded: a mask (N,), or rows.
        """
        return self._baskets.rank(basket, excluded, k)

    def is_quick(self, basket: Rows) -> bool:
        """Checks if `rank_basket` takes less than a millisecond.

        An event loop can wait for it then.
        """
        return self._baskets.is_quick(basket)

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """Computes what each item of the basket (n,) adds to some scores, (n, c).

        columns: the items with these scores, (c,).
        """
        return self._baskets.contributions(basket, columns)


def open_model(folder: Path, shard: CompiledShard) -> CompiledModel:
    """Opens the compiled model in a folder.

    DataError for a damaged folder, and for a model of another shard.
    """
    head, arrays = open_arrays(folder, CompiledModelHead)
    sizes = (head.lists_digest, head.users, head.items)
    if sizes != (shard.lists_digest, len(shard.user_ids), len(shard.item_ids)):
        raise folder_error(folder, f"a model of the shard {shard.lists_digest[:SHORT]}, got one of another shard")
    try:
        return CompiledModel(head, arrays, map_lists(folder, head, "r"))
    except KeyError as error:
        raise folder_error(folder, f"an array {error}, got none") from None
    except ValueError as error:
        raise folder_error(folder, str(error)) from None


FIELDS: Final = {f"list-{field.replace('_', '-')}": field for field in MappedLists._fields}  # by names of files


def map_lists(folder: Path, head: CompiledModelHead, mode: Literal["r", "r+"]) -> MappedLists:
    """Maps the lists of known users into memory that processes share.

    DataError for damaged files.
    """
    arrays = {}
    for name, (dtype, shape) in list_files(head).items():
        try:
            array = map_array(folder / f"{name}.npy", mode)
        except (OSError, ValueError):
            raise folder_error(folder, f"an array in {name}.npy, got something else") from None
        if array.dtype != dtype or array.shape != shape:
            raise folder_error(folder, f"{shape[0]:,} rows in {name}.npy, got others")
        arrays[FIELDS[name]] = array
    return MappedLists(**arrays)


def list_files(head: CompiledModelHead) -> dict[str, tuple[type[np.generic], tuple[int, ...]]]:
    """Lists the types and shapes of the arrays of `MappedLists`, by file names."""
    shape, cold = (head.users, head.length), (head.users, LISTED)
    types: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "items": (np.int32, shape),
        "scores": (np.float32, shape),
        "ready": (np.int64, (1,)),
    }
    if head.first:
        first = head.users, head.first
        types |= {"first_items": (np.int32, first), "first_scores": (np.float32, first)}
    if head.cold is not None and head.cold.items:
        types |= {"cold_items": (np.int32, cold), "cold_scores": (np.float32, cold)}
    return {name: types[field] for name, field in FIELDS.items() if field in types}


def _best_of(chosen: Rows, scores: Float32, k: int) -> RankedItems:
    order = np.argsort(-scores, kind="stable")[:k]
    return _fill_up(chosen[order], scores[order], k)


def _fill_up(rows: Rows, scores: Float32, k: int) -> RankedItems:
    """Fills a ranking up to k items, with -1 and -inf in empty places."""
    ranked, best = np.full(k, -1, dtype=np.int64), np.full(k, -np.inf, dtype=np.float32)
    count = min(k, int(np.count_nonzero(scores > -np.inf)))
    ranked[:count], best[:count] = rows[:count], scores[:count]
    return RankedItems(ranked, best)
