"""Similarity of users whose recommendations feed back into their graph (Table 10).

In each iteration a model is trained on all interactions so far, every user gets a list, accepts some of it, and the
graph grows. The margin's strength varies; two recommenders that learn nothing are the controls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import locate_data, paper_figures, render_table
from benchmarks.harness.claims import FAILS, HOLDS, UNSEEN
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.metrics import K
from client_service.evaluation.ranking import CHUNK, TopItems, rank_by_scores
from client_service.model_store.model_files import freeze
from client_service.models.initial_filter import Filter
from client_service.training.filter_search import best_filter, popularity_top
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.method.graph import Float64, degree_power, degrees, interaction_matrix
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum
from shared.strategies.local_client import Objective
from simulation.partitioning.sources import Cut, cut_shards

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Users:
    """Simulated users.

    preference (M, N): chance that a user accepts an item at the top of a list. partner (M,): most similar user.
    """

    preference: Float64
    partner: Rows


def observe_users(shard: Shard) -> Users:
    """Derives users from validation and test items, which they chose by themselves.

    Such an item is accepted for certain when it is seen first; another one by its mean cosine with them, over the
    training columns. A cosine divides by both degrees, so that popularity alone gives no preference.
    """
    held_out = sparse.csr_array(shard.valid + shard.test)
    _, by_item = degrees(shard.train)
    columns = shard.train @ sparse.diags_array(degree_power(by_item, -0.5))
    likeness = (columns.T @ columns).toarray()
    counts = np.maximum(np.diff(held_out.indptr), 1)[:, None]
    preference = (held_out @ likeness) / counts
    preference[held_out.nonzero()] = 1.0
    return Users(np.clip(preference, 0.0, 1.0), find_most_similar(preference))


def find_most_similar(preference: Float64) -> Rows:
    """Finds each user's partner with the largest cosine of preferences, (M,) (Appendix F.1).

    It is fixed throughout: it must not depend on the recommender.
    """
    rows = preference / np.maximum(np.linalg.norm(preference, axis=1, keepdims=True), 1e-12)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -np.inf)
    partners: Rows = np.argmax(cosine, axis=1)
    return partners


def accept_items(lists: Rows, preference: Float64, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Draws accepted items from lists (M, k); returns users (E,) and items (E,).

    Lists are best first, padded with -1. The chance is the preference times 1 / log2(rank + 1): lower items are seen
    less often. The draws belong to the places of the lists, so that two recommenders meet the same luck.
    """
    seen = 1.0 / np.log2(np.arange(2, lists.shape[1] + 2))
    chance = np.take_along_axis(preference, np.maximum(lists, 0), axis=1) * seen
    users, places = np.nonzero((rng.random(lists.shape) < chance) & (lists >= 0))
    return users.astype(np.int64), lists[users, places]


def jaccard_index(interactions: sparse.csr_array, partner: Rows) -> Float64:
    """Computes shared items over all items of a user and its partner, (M,) (Appendix F.1)."""
    sizes = np.asarray(interactions.sum(axis=1)).ravel()
    common = np.asarray(interactions.multiply(interactions[partner]).sum(axis=1)).ravel()
    indices: Float64 = common / np.maximum(sizes + sizes[partner] - common, 1.0)
    return indices


Row = dict[str, Any]
Recommend = Callable[[Shard, int], TopItems]
"""(the shard as it has become, the iteration) -> lists."""
CONTROLS = ("popularity", "random")


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures one row per recommender, seed and iteration; iteration 0 is the common start."""
    del quick
    place = locate_data(config["data"], data)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        paths = cut_shards(place, Cut(config["clients"], "spectral"), Path(folder)).paths
        shard = min((load_shard(path) for path in paths), key=lambda candidate: candidate.train.nnz)
    users = observe_users(shard)
    with threadpool_limits(1):
        return [
            {"data": config["data"], "recommender": name, "seed": seed, **row}
            for seed in config["seeds"]
            for name, recommend in _make_recommenders(config, shard, seed).items()
            for row in run_loop(shard, users, recommend, config["iterations"], seed)
        ]


def run_loop(shard: Shard, users: Users, recommend: Recommend, iterations: int, seed: int) -> list[Row]:
    """Runs one recommender from the shard's training edges on."""
    graph = shard.train
    rows = [_iteration_row(0, graph, users, lists=None, taken=0)]
    for iteration in range(1, iterations + 1):
        lists = _recommend_lists(recommend(_replace_train(shard, graph), iteration), graph)
        taken = accept_items(lists, users.preference, np.random.default_rng([seed, iteration]))
        graph = _grow_graph(graph, *taken)
        rows.append(_iteration_row(iteration, graph, users, lists, len(taken[0])))
    return rows


def _replace_train(shard: Shard, train: sparse.csr_array) -> Shard:
    """Returns the shard with another training graph; held-out pairs stay, even if accepted."""
    return build_shard_from_matrices(shard.name, shard.user_ids, shard.item_ids, (train, shard.valid, shard.test))


def _recommend_lists(top: TopItems, graph: sparse.csr_array) -> Rows:
    """Ranks K new items for every user."""
    every = np.arange(graph.shape[0])
    chunks = np.split(every, np.arange(CHUNK, len(every), CHUNK))
    return np.concatenate([top(chunk, graph[chunk], K) for chunk in chunks])


def _grow_graph(graph: sparse.csr_array, users: Rows, items: Rows) -> sparse.csr_array:
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    grown = interaction_matrix(np.concatenate([rows, users]), np.concatenate([graph.indices, items]), graph.shape)
    grown.sort_indices()
    return grown


def _iteration_row(iteration: int, graph: sparse.csr_array, users: Users, lists: Rows | None, taken: int) -> Row:
    """Summarises an iteration.

    jaccard: mean over users. taken: accepted items per user. items: different items in the lists.
    """
    shown = 0 if lists is None else len(np.unique(lists[lists >= 0]))
    mean = float(jaccard_index(graph, users.partner).mean())
    return {"iteration": iteration, "jaccard": mean, "taken": taken / graph.shape[0], "items": shown}


def _make_recommenders(config: dict[str, Any], shard: Shard, seed: int) -> dict[str, Recommend]:
    """Creates a trained model per margin strength, and two without learning."""
    base = method_settings(**config["method"])
    start = best_filter(shard, low_spectrum(shard.train, base.cutoff)).choice  # on validation items, once
    trained: dict[str, Recommend] = {
        f"gamma {strength}": _trained_recommender(base.model_copy(update={"margin_strength": strength}), start, seed)
        for strength in config["strengths"]
    }
    return {**trained, "popularity": lambda now, _: popularity_top(now), "random": _random_recommender(seed)}


def _trained_recommender(method: MethodSettings, start: Filter, seed: int) -> Recommend:
    def recommend_items(now: Shard, iteration: int) -> TopItems:
        """Fits and trains a new model on the current graph, with the margin.

        Its basis differs from the last iteration's.
        """
        torch.manual_seed(seed)
        training = ItemTrainer(now, low_spectrum(now.train, method.cutoff), method, torch.device("cpu"), start)
        training.context = RoundContext(method.warmup_rounds + 1, method.warmup_rounds + 1, seed * 1000 + iteration)
        training.train(Objective(bias_aware=True))
        return freeze(str(iteration), training).ranker.top

    return recommend_items


def _random_recommender(seed: int) -> Recommend:
    def recommend_items(now: Shard, iteration: int) -> TopItems:
        rng = np.random.default_rng([seed, iteration, 1])
        return rank_by_scores(lambda rows: rng.random((len(rows), now.train.shape[1])))

    return recommend_items


def render(rows: list[Row]) -> str:
    """Renders the mean Jaccard index over iterations, and the accepted items."""
    names, last = list(dict.fromkeys(row["recommender"] for row in rows)), max(row["iteration"] for row in rows)
    steps = sorted({round(last * share / 5) for share in range(6)})
    lines = []
    for name in names:
        own = [row for row in rows if row["recommender"] == name]
        taken = _mean_over_seeds(sum(row["taken"] for row in own if row["seed"] == seed) for seed in _row_seeds(own))
        items = np.mean([row["items"] for row in own if row["iteration"] > 0])
        cells = [_mean_over_seeds(row["jaccard"] for row in own if row["iteration"] == step) for step in steps]
        lines.append([name, *cells, taken, f"{items:.0f}"])
    head = ["iteration", *map(str, steps), "accepted a user", "items in lists"]
    return "\n\n".join([render_table(head, lines), *_paper_tables(rows[0]["data"])])


def _row_seeds(rows: list[Row]) -> list[int]:
    return sorted({row["seed"] for row in rows})


def _mean_over_seeds(values: Any) -> str:
    numbers = list(values)
    spread = f" ± {np.std(numbers, ddof=1):.4f}" if len(numbers) > 1 else ""
    return f"{np.mean(numbers):.4f}{spread}"


def _paper_tables(data: str) -> list[str]:
    """Renders the paper's table, where the data are the same.

    Its iterations are different.
    """
    theirs = paper_figures("table10", data)
    lines = [[name, *(f"{row[step]:.4f}" for step in row)] for name, row in theirs.items()]
    head = ["paper", *next(iter(theirs.values()), {})]
    return [render_table(head, lines)] if lines else []


def claims(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """Judges whether the strongest margin keeps users less alike, beyond seed differences."""
    names = [name for name in dict.fromkeys(row["recommender"] for row in rows) if name not in CONTROLS]
    last = max(row["iteration"] for row in rows)
    ends = {n: [r["jaccard"] for r in rows if (r["recommender"], r["iteration"]) == (n, last)] for n in names}
    weak, strong = ends[names[0]], ends[names[-1]]
    difference, between = float(np.mean(strong) - np.mean(weak)), max(np.ptp(weak), np.ptp(strong))
    finding = f"{names[-1]} against {names[0]}: {difference:+.4f}; seeds differ by up to {between:.4f}"
    verdict = UNSEEN if abs(difference) <= between else HOLDS if difference < 0 else FAILS
    return [("The margin keeps users' graphs from growing alike", rows[0]["data"], finding, verdict)]


def check(rows: list[Row]) -> list[str]:
    """Checks that graphs grow, and that popular items make users more alike than random ones."""
    last = max(row["iteration"] for row in rows)
    end = {(row["recommender"], row["seed"]): row for row in rows if row["iteration"] == last}
    idle = sorted({name for name, _ in end if not sum(row["taken"] for row in rows if row["recommender"] == name)})
    complaints = [f"{name}: expected something to be accepted, got nothing" for name in idle]
    for seed in _row_seeds(rows):
        popular, random = (end[name, seed]["jaccard"] for name in CONTROLS)
        if not popular > random:
            complaints.append(f"seed {seed}: expected popular items to make users more alike, got {popular:.4f}")
    return complaints
