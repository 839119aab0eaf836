"""Compiles a frozen model of items into a folder, in a form that validation chooses.

Answers are read from the folder. The form of answers to baskets is the smallest that does not rank worse than the model
itself: `truncated` tables of few entries an item, a `dense` table, a table whose best items are scored again
(`rescored`), or the model's own scores for each basket (`exact`). The weights of a score's parts relative to each other
change with the number of items. Small baskets are therefore ranked by the model's own scores if a table ranks them
worse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compilation.cold_items import CompiledCold, compile_cold_items
from client_service.compilation.exact_arrays import exact_arrays
from client_service.compilation.item_table import (
    Entries,
    LinearModel,
    all_entries,
    fewer_entries,
    fold_in,
    linearise,
    strongest_entries,
)
from client_service.compiled.arrays import save_folder
from client_service.compiled.exact_scores import ExactHead
from client_service.compiled.model import (
    FIRST,
    KIND,
    LENGTH,
    UNFITTED,
    BasketRanker,
    CompiledModel,
    CompiledModelHead,
    Form,
    Relevance,
    TableHead,
    list_files,
)
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import TopItems, find_hits
from client_service.model_store.model_files import ServedItems
from client_service.models.ranker import Ranker, Rows
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.relevance_fit import fit_relevance
from shared.cores import map_in_threads
from shared.method.graph import degrees
from shared.method.parameters import Float32

ENTRIES = (200, 400)  # entries of an item in a truncated table; a rescored one has the first number
DENSE_ITEMS = 6000  # most items of a dense table, which then takes 72 MB
FEW_ITEMS = 2000  # most items for which only a dense table is tried, which takes 8 MB and is as fast
NO_WORSE = -0.001  # least lower end of the interval of a form's gain in the primary measure
JUDGING = (2000, 6000, 12_000)  # users who judge a form: as many as it takes to accept or reject it
ACCEPTING = 6000  # least number of users who accept a form, unless a silo has fewer
SMALL_BASKETS = ((3, 8), (8, 20))  # items of the judged baskets; items below which a rejected table is not used
LEAST_JUDGING = 30  # least number of users to choose a form by
SEED = 0
COMPARED, LEAST_SLOPE = 500, 1e-6  # users, and items of each, to fit a line from one score to another; its least slope
CHANGED = 0.1  # largest relative change in the number of training pairs for which the form is kept
Arrays = dict[str, NDArray[Any]]


class Option(NamedTuple):
    """A form of answers to baskets, with its sizes.

    entries: entries of an item in the table; 0: all; None: there is no table. few: see `TableHead`.
    """

    form: Form
    entries: int | None
    few: int = 0

    @property
    def name(self) -> str:
        """Names the form for the log and for `why`."""
        return f"{self.form}-{self.entries}" if self.entries else self.form


EXACT = Option("exact", None)


@dataclass
class FormBuilder:
    """Builder of the forms of one model.

    Each intermediate result is computed when it is first needed, and kept. judged: the shard whose validation items
    choose the form, in a silo that fits its models on everything; None: `shard`. In such a silo the model knows these
    items in every form, so that forms differ only by what they leave out. compiled_cold: what cold items are scored by,
    if it is compiled already.
    """

    served: ServedItems
    shard: Shard
    interrupt: Interrupt = NEVER
    judged: Shard | None = None
    compiled_cold: CompiledCold | None = None

    @cached_property
    def baskets(self) -> sparse.csr_array:
        """Training items of each user, (M, N)."""
        return sparse.csr_array(self.shard.train.astype(np.float32))

    @cached_property
    def linear(self) -> LinearModel | None:
        """Approximates the model by sums over a basket's items; None if `linearise` cannot."""
        popularity = degrees(self.shard.train)[1].astype(np.float32)
        return linearise(self.served, self.baskets, popularity, self.interrupt)

    @cached_property
    def exact(self) -> tuple[ExactHead, Arrays]:
        """Head and arrays of the model's own scores."""
        parts = self.served.ranker.fusion.parts
        return exact_arrays(self.served, self.linear.sizes if self.linear is not None else [(0.0, 0.0)] * len(parts))

    @cached_property
    def strongest(self) -> Entries:
        """Selects the strongest entries of each item, for the largest truncated table."""
        assert self.linear is not None
        return strongest_entries(self.linear, ENTRIES[-1], self.interrupt)

    @cached_property
    def cold(self) -> CompiledCold | None:
        """Compiles the arrays that score cold items; None if no item has a text."""
        return self.compiled_cold or compile_cold_items(self.served, self.shard, self.interrupt, self.judged)

    def options(self) -> list[Option]:
        """Lists the possible forms, the smallest first, the exact one last."""
        items = self.shard.train.shape[1]
        if not self.served.ranker.fusion.parts or self.linear is None:
            return [EXACT]  # a product with the items' embeddings takes less memory than any table
        if items <= FEW_ITEMS:
            return [Option("dense", 0), EXACT]
        truncated = [Option("truncated", count) for count in ENTRIES]
        dense = [Option("dense", 0)] if items <= DENSE_ITEMS else []
        return [*truncated, *dense, Option("rescored", ENTRIES[0]), EXACT]

    def build(self, option: Option) -> tuple[TableHead | None, ExactHead | None, Arrays]:
        """Builds the heads and the arrays of a form."""
        table, exact, arrays = None, None, Arrays()
        if option.entries is not None:
            table, arrays = self._table(option, option.entries)
        if table is None or table.rescored or table.few:
            exact, own = self.exact
            arrays = arrays | own
        return table, exact, arrays

    def _table(self, option: Option, entries: int) -> tuple[TableHead, Arrays]:
        linear = self.linear
        assert linear is not None
        growths = {"growth": linear.growth, "bias_growth": linear.bias_growth}
        head = TableHead(entries=entries, rescored=option.form == "rescored", few=option.few, **growths)
        if not entries:
            return head, {"table-values": all_entries(linear, self.interrupt), "table-bias": linear.bias}
        columns, values = self.strongest if entries == ENTRIES[-1] else fewer_entries(self.strongest, entries)
        return head, {"table-values": values, "table-columns": columns, "table-bias": linear.bias}


class _Judge:
    """Compares the rankings of forms with the model's own, on validation items.

    The training items of users are ranked for as if they were baskets of unknown users. most: number of items that are
    drawn from each basket; None: all.
    """

    def __init__(self, builder: FormBuilder, judging: Sequence[int], most: int | None = None) -> None:
        self._builder, self._shard = builder, (shard := builder.judged or builder.shard)
        self._baskets = sparse.csr_array(shard.train.astype(np.float32))
        if most is not None:
            self._baskets = pick_items(self._baskets, most, np.random.default_rng(SEED))
        has_both = np.flatnonzero((np.diff(shard.valid.indptr) > 0) & (np.diff(shard.train.indptr) > 0))
        users: Rows = np.random.default_rng(SEED).permutation(has_both)[: judging[-1]]
        parts = np.split(users, [count for count in judging[:-1] if count < len(users)])
        self._blocks, self.count = [np.sort(one) for one in parts], len(users)
        self._exact: list[PerUser] = []

    def is_no_worse(self, ranker: BasketRanker) -> tuple[bool, str]:
        """Judges whether a form ranks no worse than the model, with the interval in words.

        The interval of the form's gain over the model itself must lie above NO_WORSE. Further users are ranked for only
        while NO_WORSE lies within the interval of the first ones, or while these are too few to accept a form.
        """
        gains: list[PerUser] = []
        for place, users in enumerate(self._blocks):
            gains.append(self._measure(in_blocks(partial(self._rank, ranker)), users) - self._judge_exact(place, users))
            gain = np.concatenate(gains)
            mean, half = float(gain.mean()), float(1.96 * gain.std(ddof=1) / np.sqrt(len(gain)))
            if mean + half < NO_WORSE or (mean - half > NO_WORSE and len(gain) >= ACCEPTING):
                break
        return mean - half > NO_WORSE, f"{mean:+.4f} +- {half:.4f} of {len(gain):,} users"

    def _judge_exact(self, place: int, users: Rows) -> PerUser:
        """Measures the model's own ranking for each user of a block, once."""
        if place == len(self._exact):
            self._exact.append(self._measure(in_blocks(self._rank_exactly), users))
        return self._exact[place]

    def _rank_exactly(self, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        self._builder.interrupt.check()
        served = self._builder.served
        return served.ranker.top_k_with_scores(fold_in(served, self._baskets[rows]), seen.toarray() > 0, k)[0]

    def _rank(self, ranker: BasketRanker, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        self._builder.interrupt.check()
        baskets = ((basket_of(self._baskets, row), basket_of(seen, at)) for at, row in enumerate(rows))
        return np.stack([ranker.rank(basket, excluded, k).rows for basket, excluded in baskets])

    def _measure(self, top: TopItems, users: Rows) -> PerUser:
        hits, relevant = find_hits(top, self._shard.valid, self._shard.train, users)
        return METRICS[PRIMARY].per_user(hits, relevant)


def basket_of(matrix: sparse.csr_array, row: int) -> Rows:
    """Lists the items of a row, ascending."""
    found: Rows = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)
    return found


def pick_items(baskets: sparse.csr_array, most: int, generator: np.random.Generator) -> sparse.csr_array:
    """Draws at most `most` items of each basket."""
    counts = np.diff(baskets.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((generator.random(baskets.nnz), owners))
    kept = np.sort(order[np.arange(baskets.nnz) - np.repeat(baskets.indptr[:-1], counts) < most])
    found = sparse.csr_array((baskets.data[kept], (owners[kept], baskets.indices[kept])), baskets.shape)
    found.sort_indices()
    return found


def in_blocks(top: TopItems) -> TopItems:
    """Divides the ranking of users among the cores; the lists stay the same."""

    def shared(rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        places = np.array_split(np.arange(len(rows)), max(1, len(rows) // 32))
        return np.concatenate(map_in_threads(lambda some: top(rows[some], seen[some], k), places))

    return shared


class ChosenForm(NamedTuple):
    """Form of a model, its arrays, and the reason for the choice."""

    option: Option
    table: TableHead | None
    exact: ExactHead | None
    arrays: Arrays
    why: str


def choose_form(builder: FormBuilder) -> ChosenForm:
    """Chooses the first form whose interval lies above NO_WORSE.

    The exact form is chosen if too few users have validation items, or if no other form is good enough.
    """
    options = builder.options()
    if len(options) == 1:
        return _choice(builder, EXACT, "the model's own scores are the smallest form")
    judge, intervals = _Judge(builder, JUDGING), []
    if judge.count < LEAST_JUDGING:
        return _choice(builder, EXACT, f"fewer than {LEAST_JUDGING} users have validation items to choose by")
    for option in options[:-1]:
        good, interval = judge.is_no_worse(_ranker(builder, option))
        intervals.append(f"{option.name} {interval}")
        if good:
            few, more = _choose_few(builder, option)
            return _choice(builder, option._replace(few=few), _explain([*intervals, *more]))
    return _choice(builder, EXACT, f"{_explain(intervals)}; the interval of none lies above {NO_WORSE}")


def _choose_few(builder: FormBuilder, option: Option) -> tuple[int, list[str]]:
    """Chooses the number of items below which baskets are ranked exactly.

    Returns that number, and the intervals in words.
    """
    intervals, few = [], 0
    for size, beyond in SMALL_BASKETS:
        good, interval = _Judge(builder, JUDGING[:1], size).is_no_worse(_ranker(builder, option))
        intervals.append(f"of {size} items {interval}")
        if good:
            break
        few = beyond
    return few, intervals


def _ranker(builder: FormBuilder, option: Option) -> BasketRanker:
    table, exact, arrays = builder.build(option)
    return BasketRanker(arrays, table, exact)


def _explain(intervals: list[str]) -> str:
    return f"{PRIMARY.upper()}@20 beside the model's own on validation items: {', '.join(intervals)}"


def _choice(builder: FormBuilder, option: Option, why: str) -> ChosenForm:
    return ChosenForm(option, *builder.build(option), why)


@dataclass(frozen=True)
class _BasketScorer:
    """Scorer of known users by a form, with their training items as baskets."""

    ranker: BasketRanker
    train: sparse.csr_array

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Scores some items (B, n) for each of the users in `rows` (B,)."""
        pairs = zip(rows, columns, strict=True)
        return np.stack([self.ranker.scores_at(basket_of(self.train, row), items) for row, items in pairs])


def compile_model(
    served: ServedItems,
    shard: Shard,
    serving: Path,
    before: CompiledModelHead | None = None,
    interrupt: Interrupt = NEVER,
    judged: Shard | None = None,
    cold: CompiledCold | None = None,
) -> Path:
    """Writes the folder `model-<digest>` of a model in `serving`, and returns its path.

    The lists are filled afterwards: see `fill_lists`. before: head of the model that answered until now. Its form is
    kept if it was chosen for a model of the same parts. judged, cold: see `FormBuilder`.
    """
    head, arrays = _compile(FormBuilder(served, shard, interrupt, judged, cold), before)
    return save_folder(serving, KIND, head, arrays, list_files(head))


def compile_exactly(
    served: ServedItems, shard: Shard, serving: Path, judged: Shard | None = None, cold: CompiledCold | None = None
) -> Path:
    """Writes a model's folder in the exact form, which needs no choice.

    This folder answers while `compile_model` chooses a smaller form; without `cold` no list has a new item until then.
    judged: see `FormBuilder`.
    """
    builder = FormBuilder(served, shard, judged=judged)
    why = "a smaller form is being chosen"
    if cold is None and served.cold is not None:
        why = f"{why}, and new items get their places in lists then"
    head, arrays = _describe(builder, _choice(builder, EXACT, why), served.relevance, cold)
    return save_folder(serving, KIND, head, arrays, list_files(head))


def is_chosen_at_once(served: ServedItems, shard: Shard) -> bool:
    """Checks if a model's form is chosen fast enough for answers to wait.

    This holds for few items, and for models with only one form.
    """
    return shard.train.shape[1] <= FEW_ITEMS or not served.ranker.fusion.parts


def is_compiled(head: CompiledModelHead, served: ServedItems, shard: Shard) -> bool:
    """Checks if a head belongs to this same model, in a chosen form."""
    given = head.version, head.kept_at, head.lists_digest, head.chosen_for
    expected = served.version, served.kept_at, shard.lists_digest, describe_parts(served)
    cold = head.cold is None if served.cold is None else head.cold is not None and head.cold.text == shard.text_digest
    return given == expected and head.ranked_by == digest_model(served) and cold


def compile_in_memory(
    served: ServedItems, shard: Shard, interrupt: Interrupt = NEVER, judged: Shard | None = None
) -> CompiledModel:
    """Compiles a model without a folder, for a silo whose trainer alone answers.

    The compiled model keeps no lists. judged: see `FormBuilder`.
    """
    return CompiledModel(*_compile(FormBuilder(served, shard, interrupt, judged), None))


def _compile(builder: FormBuilder, before: CompiledModelHead | None) -> tuple[CompiledModelHead, Arrays]:
    served, shard = builder.served, builder.shard
    kept = None if before is None else _kept_option(builder, before)
    choice = choose_form(builder) if kept is None or before is None else _choice(builder, kept, before.why)
    relevance = served.relevance
    if choice.option != EXACT:
        relevance = _fit_basket_relevance(builder, BasketRanker(choice.arrays, choice.table, choice.exact))
    head, arrays = _describe(builder, choice, relevance, builder.cold)
    pairs = shard.train.nnz if kept is None or before is None else before.chosen_pairs
    chosen = {"chosen_for": describe_parts(served), "chosen_pairs": pairs}
    return head.model_copy(update=chosen), arrays


def _fit_basket_relevance(builder: FormBuilder, ranker: BasketRanker) -> Relevance:
    """Fits the relevance of a form's scores of baskets.

    Without a `judged` shard, the validation items fit it. With one, the model knows these items, and they would seem
    too likely. A line, fitted to both scores of known users, then maps a form's score to the model's own score, and the
    relevance of the model's own score is taken.
    """
    served, shard = builder.served, builder.shard
    scorer = _BasketScorer(ranker, shard.train)
    if builder.judged is None:
        return fit_relevance(shard, scorer, builder.interrupt)
    users = np.flatnonzero(np.diff(shard.train.indptr) > 0)[:COMPARED]
    columns = np.random.default_rng(SEED).integers(0, shard.train.shape[1], (len(users), COMPARED))
    own, exact = scorer.scores(users, columns).ravel(), served.ranker.scores(users, columns).ravel()
    spread = float(own.std())
    if spread == 0.0:
        return served.relevance
    slope = max(float(np.cov(own, exact, ddof=0)[0, 1]) / spread**2, LEAST_SLOPE)
    shift = float(exact.mean()) - slope * float(own.mean())
    known = served.relevance
    return Relevance(known.slope * slope, known.intercept + known.slope * shift)


def _describe(
    builder: FormBuilder, choice: ChosenForm, basket_relevance: Relevance, cold: CompiledCold | None
) -> tuple[CompiledModelHead, Arrays]:
    """Makes a model's head and arrays.

    The head does not state yet what the form was chosen for.
    """
    served, shard = builder.served, builder.shard
    users, items = shard.train.shape
    head = CompiledModelHead(
        version=served.version,
        kept_at=served.kept_at,
        lists_digest=shard.lists_digest,
        ranked_by=digest_model(served),
        users=users,
        items=items,
        length=min(LENGTH, items),
        first=min(FIRST, items),
        form=choice.option.form,
        entries=choice.option.entries,
        few=choice.option.few,
        why=choice.why,
        chosen_for="",
        chosen_pairs=0,
        relevance=served.relevance,
        basket_relevance=basket_relevance,
        table=choice.table,
        exact=choice.exact,
        cold=None if cold is None else cold.head,
        cold_relevance=UNFITTED if cold is None else cold.relevance,
    )
    arrays = choice.arrays | {"directions": np.ascontiguousarray(served.directions)}
    return head, arrays if cold is None else arrays | cold.arrays


def digest_model(served: ServedItems) -> str:
    """Computes the sha256 of a model's arrays on which answers depend.

    It leaves out those that the shard and the recipe determine.
    """
    if served.cold is None:
        return digest_ranker(served.ranker)
    found = hashlib.sha256(digest_ranker(served.ranker).encode())
    for array in (served.cold.features, served.cold.weights):
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def digest_ranker(ranker: Ranker) -> str:
    """Computes the sha256 of a ranker's arrays that lists follow from.

    Arrays that the shard and its recipe determine are left out, so that a model read from the disk keeps its lists.
    """
    found = hashlib.sha256(f"{ranker.residual}".encode())
    found.update(repr([loudness for loudness, _ in ranker.fusion.parts]).encode())
    sides = ((side.embedding, side.narrow, side.hidden) for side in (ranker.users, ranker.items))
    predictor = ranker.predictor
    for array in (*(one for side in sides for one in side), predictor.on_both, predictor.output, predictor.bias):
        found.update(np.ascontiguousarray(array).tobytes())
    for code in ranker.users.codes:
        for array in (code.data, code.indices, code.indptr) if isinstance(code, sparse.csr_array) else (code,):
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def describe_parts(served: ServedItems) -> str:
    """Describes the parts of a model that a form is chosen for.

    These are the encoder, the scorers fused with it, and whether its head is trained.
    """
    ranker = served.ranker
    trained = "trained" if ranker.predictor.reach > 0.0 else "untrained"
    fused = ", ".join(f"{type(part).__name__} {loudness:.3g}" for loudness, part in ranker.fusion.parts)
    return f"{type(served.model.encoder).__name__} {trained}; {fused}"


def _kept_option(builder: FormBuilder, before: CompiledModelHead) -> Option | None:
    """Returns the earlier model's form if it also fits this model, else None.

    It fits if it was chosen for the same parts, and for about as many training pairs.
    """
    pairs = builder.shard.train.nnz
    if before.chosen_for != describe_parts(builder.served) or abs(pairs - before.chosen_pairs) > CHANGED * pairs:
        return None
    known = Option(before.form, before.entries, before.few)
    return known if known._replace(few=0) in builder.options() else None
