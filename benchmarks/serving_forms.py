"""Compares compiled answers with the model itself: quality, size, and the cost of compiling.

python -m benchmarks.serving_forms SHARD... [--users 4000] [--form truncated-200] [--json]

Of each shard a tenth of the users are taken out; on the rest a first model is trained in closed form and compiled.
baskets: training items of known users, given as baskets. new users: those taken out. small: three items of each basket.
All are judged by NDCG@20 on test items, once by the model and once by the compiled form; the difference is paired, with
its 95 % interval over users. form: instead of the one that validation chooses. Seconds of a list are those of ranking
alone, in one thread, for baskets of 20 and of 200 items.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.common import render_table
from benchmarks.speed.first_model import forget_peak, peak_memory
from client_service.compilation.item_model import (
    EXACT,
    ChosenForm,
    FormBuilder,
    basket_of,
    choose_form,
    in_blocks,
    pick_items,
)
from client_service.compilation.item_table import fold_in
from client_service.compiled.model import BasketRanker
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import TopItems, find_hits
from client_service.federation.training_run import TrainingRun
from client_service.model_store.model_files import ServedItems
from client_service.models.ranker import Rows
from client_service.runtime.device import pin_threads
from client_service.serving.model_server import ModelServer
from client_service.tasks import items
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.method.tensors import EXCHANGES, initial_parameters

NEW_SHARE, SEED, SMALL = 0.1, 0, 3
NO_WORSE = -0.001  # NDCG@20: the whole interval of the difference must lie above it
SIZES, LISTS = (20, 200), 100  # sizes of timed baskets, and the number of each


@dataclass(frozen=True)
class FormGain:
    """The gain of the compiled form over the model, for one kind of basket.

    users: how many judge. exact: the mean of the model itself. mean: of the gain. half: half of its 95 % interval.
    """

    kind: str
    users: int
    exact: float
    mean: float
    half: float

    @property
    def holds(self) -> bool:
        """Whether the whole interval lies above NO_WORSE."""
        return self.mean - self.half > NO_WORSE


@dataclass(frozen=True)
class JudgedForm:
    """The figures of one shard's compiled form.

    form, why: the compiled form, and why it was chosen. megabytes: its size. seconds, peak: time and more MiB of memory
    for choosing and compiling it. again: seconds to compile it alone. lists: milliseconds of one list, by the size of
    the basket.
    """

    shard: str
    users: int
    items: int
    form: str
    why: str
    megabytes: float
    seconds: float
    again: float
    peak: float
    gains: tuple[FormGain, ...]
    lists: dict[int, float]


def serve_first_model(shard: Shard, folder: Path) -> ServedItems:
    """Makes the closed-form model of round 0, judged as in a client."""
    method, answers = method_settings(), ModelServer()
    place = RunContext(shard.name, "run-1", 0, method, folder)
    run = TrainingRun(place, items.ITEMS, shard, answers, torch.device("cpu"))
    tensors = sorted(EXCHANGES[method.model].tensors(method))
    run.begin(Parameters(initial_parameters(tensors, 0, exact=True)), 0)
    assert isinstance(answers.served, ServedItems)
    return answers.served


def select_shard_users(shard: Shard, rows: Rows) -> Shard:
    """Reduces a shard to these users, with all of its items."""
    matrices = [sparse.csr_array(part[rows]) for part in (shard.train, shard.valid, shard.test)]
    return build_shard_from_matrices(shard.name, [shard.user_ids[row] for row in rows], shard.item_ids, matrices)


def measure_gain(
    kind: str, served: ServedItems, ranker: BasketRanker, baskets: sparse.csr_array, seen: sparse.csr_array, target: Any
) -> FormGain:
    """Measures the gain of the compiled form by the users that judge.

    baskets, seen, target: of these users, (B, N).
    """

    def rank_exactly(rows: Rows, known: sparse.csr_array, k: int) -> Rows:
        return served.ranker.top_k_with_scores(fold_in(served, baskets[rows]), known.toarray() > 0, k)[0]

    def rank(rows: Rows, known: sparse.csr_array, k: int) -> Rows:
        pairs = ((basket_of(baskets, row), basket_of(known, at)) for at, row in enumerate(rows))
        return np.stack([ranker.rank(basket, met, k).rows for basket, met in pairs])

    users = np.flatnonzero((np.diff(baskets.indptr) > 0) & (np.diff(target.indptr) > 0))
    exact, own = (_measure(in_blocks(top), target, seen, users) for top in (rank_exactly, rank))
    gain = own - exact
    half = 1.96 * gain.std(ddof=1) / np.sqrt(len(gain))
    return FormGain(kind, len(users), float(exact.mean()), float(gain.mean()), float(half))


def _measure(top: TopItems, target: sparse.csr_array, seen: sparse.csr_array, users: Rows) -> PerUser:
    return METRICS[PRIMARY].per_user(*find_hits(top, target, seen, users))


def time_lists(ranker: BasketRanker, popularity: np.ndarray) -> dict[int, float]:
    """Measures the median milliseconds of one list for a basket of each size.

    Items are drawn in proportion to their popularity.
    """
    generator, found = np.random.default_rng(SEED), {}
    for size in SIZES:
        count = min(size, int(np.count_nonzero(popularity)) // 2)
        draw = partial(generator.choice, len(popularity), count, replace=False, p=popularity / popularity.sum())
        seconds = []
        for basket in [np.sort(draw()) for _ in range(LISTS)]:
            began = time.perf_counter()
            ranker.rank(basket, basket, 20)
            seconds.append(time.perf_counter() - began)
        found[size] = 1000 * float(np.median(seconds))
    return found


def choose(builder: FormBuilder, form: str | None) -> ChosenForm:
    """Builds the named form, or the one that validation chooses.

    Raises SystemExit for an unknown name.
    """
    if form is None:
        return choose_form(builder)
    option = next((one for one in (*builder.options(), EXACT) if one.name == form), None)
    if option is None:
        raise SystemExit(f"--form: expected one of {', '.join(one.name for one in builder.options())}, got {form}")
    return ChosenForm(option, *builder.build(option), "by --form")


def judge_shard(folder: Path, most: int, form: str | None = None) -> JudgedForm:
    """Measures all figures of one shard."""
    whole = load_shard(folder)
    generator = np.random.default_rng(SEED)
    drawn = generator.permutation(len(whole.user_ids))
    count = round(NEW_SHARE * len(drawn))
    new, old = np.sort(drawn[:count]), np.sort(drawn[count:])
    shard = select_shard_users(whole, old)
    with tempfile.TemporaryDirectory() as kept:
        served = serve_first_model(shard, Path(kept))
    forget_peak()
    before, began = peak_memory(), time.perf_counter()
    builder = FormBuilder(served, shard)
    chosen = choose(builder, form)
    seconds, peak = time.perf_counter() - began, peak_memory() - before
    began = time.perf_counter()
    FormBuilder(served, shard).build(chosen.option)
    again = time.perf_counter() - began
    ranker = BasketRanker(chosen.arrays, chosen.table, chosen.exact)
    some = np.sort(np.random.default_rng(SEED).permutation(len(old))[:most])
    baskets = sparse.csr_array(shard.train[some].astype(np.float32))
    seen, target = sparse.csr_array(shard.train[some] + shard.valid[some]), sparse.csr_array(shard.test[some])
    strangers = sparse.csr_array(whole.train[new].astype(np.float32))
    later = sparse.csr_array(whole.valid[new] + whole.test[new])
    small = pick_items(baskets, SMALL, np.random.default_rng(SEED))
    gains = (
        measure_gain("baskets", served, ranker, baskets, seen, target),
        measure_gain("new users", served, ranker, strangers, strangers, later),
        measure_gain("small", served, ranker, small, seen, target),
    )
    popularity = np.asarray(shard.train.sum(axis=0)).ravel()
    megabytes = sum(array.nbytes for array in chosen.arrays.values()) / 1e6
    users, columns = shard.train.shape
    lists = time_lists(ranker, popularity)
    sized = (users, columns, chosen.option.name, chosen.why, megabytes, seconds, again, peak)
    return JudgedForm(f"{folder.parent.name}/{folder.name}", *sized, gains, lists)


def as_table(found: Sequence[JudgedForm]) -> str:
    """Renders a table with a line for each shard and kind of basket."""
    head = ("shard", "users x items", "form", "MB", "kind", "users", "NDCG@20", "compiled", "above -.001")
    rest = ("compiled s", "again s", "more MiB", "20, 200 items ms")
    rows = []
    for one in found:
        about = [one.shard, f"{one.users:,} x {one.items:,}", one.form, f"{one.megabytes:.1f}"]
        costs = [f"{one.seconds:.1f}", f"{one.again:.1f}", f"{one.peak:,.0f}"]
        costs.append(", ".join(f"{one.lists[size]:.2f}" for size in SIZES))
        for gain in one.gains:
            told = [gain.kind, f"{gain.users:,}", f"{gain.exact:.4f}", f"{gain.mean:+.4f} +- {gain.half:.4f}"]
            rows.append([*about, *told, "yes" if gain.holds else "no", *costs])
            about, costs = [""] * len(about), [""] * len(costs)
    return render_table((*head, *rest), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path, nargs="+")
    parser.add_argument("--users", type=int, default=4000, help="known users who judge, at most")
    parser.add_argument("--form", help="instead of the one that validation chooses")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pin_threads(1)
    found = [judge_shard(folder, given.users, given.form) for folder in given.shard]
    if given.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return
    print(as_table(found))
    print("\n".join(f"{one.shard}: {one.why}" for one in found))


if __name__ == "__main__":
    main()
