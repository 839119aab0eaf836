"""Compiles a frozen model of items into the folder that answers are read from; validation chooses its form.

The form of answers to baskets is the smallest that does not rank worse than the model itself: `truncated` tables of
few entries an item, a `dense` one, a table whose best items are scored again (`rescored`), or the model's own scores
for each basket (`exact`). How loud the parts of a score are beside each other is another thing for a few items than for
many, so that small baskets are ranked by the model's own scores where a table ranks them worse.
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
    KIND,
    LENGTH,
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
from client_service.model_store.model_files import Served
from client_service.models.ranker import Ranker, Rows
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.relevance_fit import fit_relevance
from shared.cores import in_threads
from shared.method.graph import degrees
from shared.method.parameters import Float32

ENTRIES = (200, 400)  # of an item in a truncated table; the first also where the best items are scored again
DENSE_ITEMS = 6000  # up to which there is a dense table: 72 MB
FEW_ITEMS = 2000  # up to which only a dense one is tried: it is 8 MB, and as fast
NO_WORSE = -0.001  # of the primary measure: the lower end of a form's interval must lie above
JUDGING = (2000, 6000)  # users who judge a form, all of them unless the first ones say no
SMALL_BASKETS = ((3, 8), (8, 20))  # items of baskets by which a table is judged, and below how many it is not used then
LEAST_JUDGING = 30  # without whom nothing is chosen
SEED = 0
ALIKE, TINY = 500, 1e-6  # known users, and items of each, by which two scores are compared; the least slope
CHANGED = 0.1  # share of the training pairs by which their number may differ before a form is chosen anew
Arrays = dict[str, NDArray[Any]]


class Option(NamedTuple):
    """A form, and what it is made of. entries: of an item in the table, 0: all, None: there is none. few: see
    `TableHead`."""

    form: Form
    entries: int | None
    few: int = 0

    @property
    def name(self) -> str:
        """As the log and `why` have it."""
        return f"{self.form}-{self.entries}" if self.entries else self.form


EXACT = Option("exact", None)


@dataclass
class FormBuilder:
    """The forms of one model. Nothing is made before it is asked for, and nothing twice.

    judged: the shard whose validation items choose; it differs from `shard` in a silo that fits its models on
    everything. There the model knows these items in whichever form: what differs is what the form leaves out.
    """

    served: Served
    shard: Shard
    interrupt: Interrupt = NEVER
    judged: Shard | None = None

    @cached_property
    def baskets(self) -> sparse.csr_array:
        """The training items of each user, (M, N)."""
        return sparse.csr_array(self.shard.train.astype(np.float32))

    @cached_property
    def linear(self) -> LinearModel | None:
        """The model as sums over a basket's items; None where it is nothing like that."""
        popularity = degrees(self.shard.train)[1].astype(np.float32)
        return linearise(self.served, self.baskets, popularity, self.interrupt)

    @cached_property
    def exact(self) -> tuple[ExactHead, Arrays]:
        """The model's own scores in arrays."""
        parts = self.served.ranker.fusion.parts
        return exact_arrays(self.served, self.linear.sizes if self.linear is not None else [(0.0, 0.0)] * len(parts))

    @cached_property
    def strongest(self) -> Entries:
        """As many entries of each item as any truncated table has."""
        assert self.linear is not None
        return strongest_entries(self.linear, ENTRIES[-1], self.interrupt)

    def options(self) -> list[Option]:
        """The forms that are possible, the smallest first. The last one is exact."""
        items = self.shard.train.shape[1]
        if not self.served.ranker.fusion.parts or self.linear is None:
            return [EXACT]  # a product with the items' embeddings is smaller than any table
        if items <= FEW_ITEMS:
            return [Option("dense", 0), EXACT]
        truncated = [Option("truncated", count) for count in ENTRIES]
        dense = [Option("dense", 0)] if items <= DENSE_ITEMS else []
        return [*truncated, *dense, Option("rescored", ENTRIES[0]), EXACT]

    def build(self, option: Option) -> tuple[TableHead | None, ExactHead | None, Arrays]:
        """The arrays of this form."""
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
    """Ranks validation items for the training items of users as if these were strangers' baskets. most: items of each
    basket that count, drawn; None: all."""

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
        """Does the interval of its gain over the model itself lie above NO_WORSE? And the interval in words.

        Not all users are asked where some of them say no.
        """
        gains: list[PerUser] = []
        for place, users in enumerate(self._blocks):
            gains.append(self._measure(in_blocks(partial(self._rank, ranker)), users) - self._judge_exact(place, users))
            gain = np.concatenate(gains)
            mean, half = float(gain.mean()), float(1.96 * gain.std(ddof=1) / np.sqrt(len(gain)))
            if mean + half < NO_WORSE:
                break
        return mean - half > NO_WORSE, f"{mean:+.4f} +- {half:.4f} of {len(gain):,} users"

    def _judge_exact(self, place: int, users: Rows) -> PerUser:
        """The measure of each user by the model itself."""
        if place == len(self._exact):
            self._exact.append(self._measure(in_blocks(self._rank_exactly), users))
        return self._exact[place]

    def _rank_exactly(self, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        self._builder.interrupt.check()
        served = self._builder.served
        return served.ranker.top_scored(fold_in(served, self._baskets[rows]), seen.toarray() > 0, k)[0]

    def _rank(self, ranker: BasketRanker, rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        self._builder.interrupt.check()
        baskets = ((basket_of(self._baskets, row), basket_of(seen, at)) for at, row in enumerate(rows))
        return np.stack([ranker.rank(basket, excluded, k).rows for basket, excluded in baskets])

    def _measure(self, top: TopItems, users: Rows) -> PerUser:
        hits, relevant = find_hits(top, self._shard.valid, self._shard.train, users)
        return METRICS[PRIMARY].per_user(hits, relevant)


def basket_of(matrix: sparse.csr_array, row: int) -> Rows:
    """The items of a row, ascending."""
    found: Rows = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)
    return found


def pick_items(baskets: sparse.csr_array, most: int, generator: np.random.Generator) -> sparse.csr_array:
    """At most so many items of each basket, drawn."""
    counts = np.diff(baskets.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((generator.random(baskets.nnz), owners))
    kept = np.sort(order[np.arange(baskets.nnz) - np.repeat(baskets.indptr[:-1], counts) < most])
    found = sparse.csr_array((baskets.data[kept], (owners[kept], baskets.indices[kept])), baskets.shape)
    found.sort_indices()
    return found


def in_blocks(top: TopItems) -> TopItems:
    """The same lists, of which the cores make some each."""

    def shared(rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
        places = np.array_split(np.arange(len(rows)), max(1, len(rows) // 32))
        return np.concatenate(in_threads(lambda some: top(rows[some], seen[some], k), places))

    return shared


class ChosenForm(NamedTuple):
    """A form and its arrays, and why it is this one."""

    option: Option
    table: TableHead | None
    exact: ExactHead | None
    arrays: Arrays
    why: str


def choose_form(builder: FormBuilder) -> ChosenForm:
    """The first form whose interval lies above NO_WORSE; the exact one where nobody can judge, or none is as good."""
    options = builder.options()
    if len(options) == 1:
        return _choice(builder, EXACT, "the model's own scores are the smallest form")
    judge, told = _Judge(builder, JUDGING), []
    if judge.count < LEAST_JUDGING:
        return _choice(builder, EXACT, f"fewer than {LEAST_JUDGING} users have validation items to choose by")
    for option in options[:-1]:
        good, interval = judge.is_no_worse(_ranker(builder, option))
        told.append(f"{option.name} {interval}")
        if good:
            few, more = _choose_few(builder, option)
            return _choice(builder, option._replace(few=few), _explain([*told, *more]))
    return _choice(builder, EXACT, f"{_explain(told)}; the interval of none lies above {NO_WORSE}")


def _choose_few(builder: FormBuilder, option: Option) -> tuple[int, list[str]]:
    """Below how many items a basket is ranked exactly; and the intervals in words."""
    told, few = [], 0
    for size, beyond in SMALL_BASKETS:
        good, interval = _Judge(builder, JUDGING[:1], size).is_no_worse(_ranker(builder, option))
        told.append(f"of {size} items {interval}")
        if good:
            break
        few = beyond
    return few, told


def _ranker(builder: FormBuilder, option: Option) -> BasketRanker:
    table, exact, arrays = builder.build(option)
    return BasketRanker(arrays, table, exact)


def _explain(told: list[str]) -> str:
    return f"{PRIMARY.upper()}@20 beside the model's own on validation items: {', '.join(told)}"


def _choice(builder: FormBuilder, option: Option, why: str) -> ChosenForm:
    return ChosenForm(option, *builder.build(option), why)


@dataclass(frozen=True)
class _BasketScorer:
    """Scores of a form for known users, as if their training items were strangers' baskets."""

    ranker: BasketRanker
    train: sparse.csr_array

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Of some items (B, n) for each of the users in `rows` (B,)."""
        pairs = zip(rows, columns, strict=True)
        return np.stack([self.ranker.scores_at(basket_of(self.train, row), items) for row, items in pairs])


def compile_model(
    served: Served,
    shard: Shard,
    serving: Path,
    before: CompiledModelHead | None = None,
    interrupt: Interrupt = NEVER,
    judged: Shard | None = None,
) -> Path:
    """Writes the folder `model-<digest>` in `serving`, whose lists are filled afterwards: see `fill_lists`.

    before: of the model that answered until now; its form is kept where that was chosen for a model of the same parts.
    judged: see `FormBuilder`.
    """
    head, arrays = _compile(FormBuilder(served, shard, interrupt, judged), before)
    return save_folder(serving, KIND, head, arrays, list_files(head))


def compile_exactly(served: Served, shard: Shard, serving: Path) -> Path:
    """Writes a folder in the form that is there at once, for answers while `compile_model` chooses a smaller one."""
    choice = _choice(FormBuilder(served, shard), EXACT, "a smaller form is being chosen")
    head, arrays = _describe(served, shard, choice, served.relevance)
    return save_folder(serving, KIND, head, arrays, list_files(head))


def is_chosen_at_once(served: Served, shard: Shard) -> bool:
    """Is the form of a model that small, or the only one, that answers may wait until it is chosen?"""
    return shard.train.shape[1] <= FEW_ITEMS or not served.ranker.fusion.parts


def is_compiled(head: CompiledModelHead, served: Served, shard: Shard) -> bool:
    """Is this the head of the very model, in a form that was chosen for it?"""
    given = head.version, head.kept_at, head.lists_digest, head.chosen_for
    expected = served.version, served.kept_at, shard.lists_digest, describe_parts(served)
    return given == expected and head.ranked_by == digest_ranker(served.ranker)


def compile_in_memory(
    served: Served, shard: Shard, interrupt: Interrupt = NEVER, judged: Shard | None = None
) -> CompiledModel:
    """The compiled model without a folder, for a silo that no other process answers for. It keeps no lists."""
    return CompiledModel(*_compile(FormBuilder(served, shard, interrupt, judged), None))


def _compile(builder: FormBuilder, before: CompiledModelHead | None) -> tuple[CompiledModelHead, Arrays]:
    served, shard = builder.served, builder.shard
    kept = None if before is None else _kept_option(builder, before)
    choice = choose_form(builder) if kept is None or before is None else _choice(builder, kept, before.why)
    relevance = served.relevance
    if choice.option != EXACT:
        relevance = _relate_baskets(builder, BasketRanker(choice.arrays, choice.table, choice.exact))
    head, arrays = _describe(served, shard, choice, relevance)
    pairs = shard.train.nnz if kept is None or before is None else before.chosen_pairs
    chosen = {"chosen_for": describe_parts(served), "chosen_pairs": pairs}
    return head.model_copy(update=chosen), arrays


def _relate_baskets(builder: FormBuilder, ranker: BasketRanker) -> Relevance:
    """What a form's scores of baskets mean.

    Where the model knows the validation items they would seem too likely: there a score means what the model's own
    score means that lies beside it, by a line through both of known users.
    """
    served, shard = builder.served, builder.shard
    scorer = _BasketScorer(ranker, shard.train)
    if builder.judged is None:
        return fit_relevance(shard, scorer, builder.interrupt)
    users = np.flatnonzero(np.diff(shard.train.indptr) > 0)[:ALIKE]
    columns = np.random.default_rng(SEED).integers(0, shard.train.shape[1], (len(users), ALIKE))
    own, exact = scorer.scores(users, columns).ravel(), served.ranker.scores(users, columns).ravel()
    spread = float(own.std())
    if spread == 0.0:
        return served.relevance
    slope = max(float(np.cov(own, exact, ddof=0)[0, 1]) / spread**2, TINY)
    shift = float(exact.mean()) - slope * float(own.mean())
    known = served.relevance
    return Relevance(known.slope * slope, known.intercept + known.slope * shift)


def _describe(
    served: Served, shard: Shard, choice: ChosenForm, basket_relevance: Relevance
) -> tuple[CompiledModelHead, Arrays]:
    """The head of a model whose form is chosen for nothing yet, and its arrays."""
    users, items = shard.train.shape
    head = CompiledModelHead(
        version=served.version,
        kept_at=served.kept_at,
        lists_digest=shard.lists_digest,
        ranked_by=digest_ranker(served.ranker),
        users=users,
        items=items,
        length=min(LENGTH, items),
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
    )
    return head, choice.arrays | {"directions": np.ascontiguousarray(served.directions)}


def digest_ranker(ranker: Ranker) -> str:
    """sha256 of all that lists follow from, but for what the shard and its recipe give again: a model that was read
    from the disk has the lists that it had."""
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


def describe_parts(served: Served) -> str:
    """What a form is chosen for: the encoder, what is fused with it, and whether its head is trained."""
    ranker = served.ranker
    trained = "trained" if ranker.predictor.reach > 0.0 else "untrained"
    fused = ", ".join(f"{type(part).__name__} {loudness:.3g}" for loudness, part in ranker.fusion.parts)
    return f"{type(served.model.encoder).__name__} {trained}; {fused}"


def _kept_option(builder: FormBuilder, before: CompiledModelHead) -> Option | None:
    """The form of the model before, where it was chosen for parts and a graph like these."""
    pairs = builder.shard.train.nnz
    if before.chosen_for != describe_parts(builder.served) or abs(pairs - before.chosen_pairs) > CHANGED * pairs:
        return None
    known = Option(before.form, before.entries, before.few)
    return known if known._replace(few=0) in builder.options() else None
