"""Measures how text improves a small shop's lists in a federation of disjoint shops.

The shops have no item and no user in common. The small shop's lists are ranked by interactions alone, with its own
text, and with the content sums of the others; its cold items, which have no interactions, by plain text, by its own
content and by that of all shops. The rankings are measured on visitors, whose interactions no shop has in training, and
on the shop's own users. No silo reports these figures: the experiment has all shards, and it takes the others' content
sums from the silo's state after the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from client_service.data.events import SPLITS, row_numbers
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import PerUser, ndcg
from client_service.evaluation.ranking import TopItems, find_hits, rank_by_scores
from client_service.models.closed_form.content import (
    ContentSums,
    add_constant,
    find_item_features,
    sum_content,
)
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.cold_items import choose_cold_setting, fit_cold_items
from client_service.models.hidden_items import mean_gain
from client_service.models.initial_filter import Filter, build_start
from client_service.models.score_fusion import build_fusion, select_codes
from client_service.sums.content import ContentStatistics
from client_service.sums.storage import load_basis, load_basis_head
from client_service.training.filter_search import best_filter
from client_service.training.fusion_search import best_recipe
from client_service.training.spectrum_cache import cached_spectrum
from shared.errors import DataError
from shared.method.graph import degree_power, degrees, interaction_matrix
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum
from simulation.experiments.experiment import Experiment
from simulation.partitioning.sources import HIDDEN_PAIRS

WARM, COLD = "warm NDCG@20", "cold NDCG@10"
NORMAL = 1.96  # half-width of a 95 % interval in standard errors


def measure_small_shop(experiment: Experiment) -> tuple[str, dict[str, Any]]:
    """Measures the shop with the fewest users and returns its name and figures.

    The figures are `today`, `own_text`, `together` and `plain_text`.
    gains: ratios and paired differences, with 95 % intervals over its users. DataError for items without text.
    """
    shards = {path: load_shard(path) for path in experiment.shards}
    small = min(shards, key=lambda path: len(shards[path].user_ids))
    shard, found = shards[small], find_item_features(shards[small])
    if found is None:
        raise DataError(
            f"{small.name}: expected items with titles or attributes, got none: this scenario compares text"
        )
    others = _kept_sums(experiment, small) or _pooled_sums([one for path, one in shards.items() if path != small])
    features, hidden = found.values, pl.read_parquet(small.parent / HIDDEN_PAIRS)
    visits = _read_visits(shard, hidden)
    spectrum = cached_spectrum(shard, experiment.method.cutoff, None)
    together = ClosedFormScorers(shard.train, spectrum, features, others)
    warm = _measure_warm(shard, together, visits)
    share = 0.0 if (setting := together.choose_cold_setting()) is None else setting.others
    cold = _measure_cold(shard, features, others.scale(share) if share else None, visits, experiment.seed)
    judged = {"judged": {WARM: len(warm["today"]), COLD: len(cold["plain_text"])}}
    figures: dict[str, Any] = {"small": True, "shop_users": len(shard.user_ids), **judged}
    for kind, values in ((WARM, warm), (COLD, cold)):
        for name, one in values.items():
            figures.setdefault(name, {})[kind] = round(float(one.mean()), 4) if len(one) else None
    pairs = [(WARM, warm, "own_text"), (WARM, warm, "today"), (COLD, cold, "own_text"), (COLD, cold, "plain_text")]
    gains = [_compare(kind, values["together"], base, values[base]) for kind, values, base in pairs]
    return small.name, figures | {"gains": gains}


def join_figures(row: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Adds figures to a silo's row of the report.

    A figure that is a dict in the row already gets the further entries.
    """
    return row | {
        name: {**row[name], **value} if isinstance(row.get(name), dict) else value for name, value in figures.items()
    }


def _compare(kind: str, together: PerUser, name: str, base: PerUser) -> dict[str, Any]:
    moved = together - base
    error = NORMAL * float(moved.std(ddof=1)) / np.sqrt(len(moved)) if len(moved) > 1 else float("nan")
    found = {"ratio": together.mean() / base.mean(), "difference": moved.mean(), "interval": error}
    return {"measure": kind, "over": name, **{key: round(float(value), 4) for key, value in found.items()}}


def _kept_sums(experiment: Experiment, shard: Path) -> ContentSums | None:
    """Reads the others' content sums from the silo's state; None without any."""
    folder = experiment.state_folder(shard) / "basis"
    head = load_basis_head(folder, "content")
    found = None if head is None else load_basis(folder, head.digest)
    return found.sums if isinstance(found, ContentStatistics) else None


def _pooled_sums(others: list[Shard]) -> ContentSums:
    """Computes the content sums of the other shops from their shards."""
    total: ContentSums | None = None
    for shard in others:
        features = find_item_features(shard)
        if features is None:
            raise DataError(f"{shard.name}: expected items with titles or attributes, got none")
        own = sum_content(shard.train, add_constant(features.values))
        total = own if total is None else total.add(own)
    assert total is not None, "expected another shop"
    return total


def _measure_warm(shard: Shard, together: ClosedFormScorers, visits: _Visits) -> dict[str, PerUser]:
    """Measures the NDCG@20 of the shop's warm items for visitors and own users.

    It is that of each user with a test item; lists leave out cold items. together: scorers with all sums.
    """
    spectrum, features = together.spectrum, together.graph.features
    chosen = best_filter(shard, spectrum).choice
    ways = {
        "today": ClosedFormScorers(shard.train, spectrum),
        "own_text": ClosedFormScorers(shard.train, spectrum, features),
        "together": together,
    }
    nobody_has = np.bincount(shard.train.indices, minlength=len(shard.item_ids)) == 0
    barred = sparse.csr_array(np.broadcast_to(nobody_has.astype(np.float64), visits.train.shape))
    seen = sparse.csr_array(visits.train + visits.valid + barred)
    base = _score_visits(chosen, spectrum, shard.train, visits.train)

    def lists(made: ClosedFormScorers) -> TopItems:
        fusion = build_fusion(best_recipe(shard, spectrum, chosen, closed_forms=made), shard.train, spectrum, (), made)
        codes = fusion.encode(visits.train)
        return rank_by_scores(lambda rows: fusion.add_to(base[rows], select_codes(codes, rows)))

    return {name: ndcg(*find_hits(lists(made), visits.test, seen)) for name, made in ways.items()}


def _score_visits(chosen: Filter, spectrum: Spectrum, train: sparse.csr_array, baskets: sparse.csr_array) -> Float32:
    """Scores all items by the filter for baskets of any users, (B, N).

    A basket's row of U is x D^-1/2 V / s.
    """
    kept, start = spectrum.cut(chosen.cutoff), build_start(chosen, spectrum, train)
    amplitude = np.sqrt(kept.singular * chosen.response(kept.singular))
    entered = baskets * degree_power(degrees(train)[1], -0.5)[None, :]
    users = np.asarray(sparse.csr_array(entered) @ kept.items) / kept.singular * amplitude
    found: Float32 = (users @ (start.items * start.item_scale[:, None]).T).astype(np.float32)
    return found


def _measure_cold(
    shard: Shard, features: Float32, others: ContentSums | None, visits: _Visits, seed: int
) -> dict[str, PerUser]:
    """Measures the NDCG@10 of the shop's cold items for visitors and own users.

    It is that of each user who has a cold item. others: content sums of the other shops; None: they are not used.
    """
    cold = np.flatnonzero(np.diff(visits.cold.tocsc().indptr))
    wanted = visits.cold[:, cold].toarray() > 0
    asked = np.flatnonzero(wanted.any(axis=1) & (np.diff(visits.train.indptr) > 0))
    baskets, new, judged = visits.train[asked].astype(np.float32), features[cold], wanted[asked]
    found = {"plain_text": mean_gain(np.asarray(baskets @ features) @ new.T, judged)}
    for name, sums in (("own_text", None), ("together", others)):
        setting = choose_cold_setting(shard.train, features, seed, sums)
        found[name] = mean_gain(fit_cold_items(shard.train, features, setting, others=sums).score(baskets, new), judged)
    return found


@dataclass(frozen=True)
class _Visits:
    """The interactions of the shop's users and visitors with its items.

    (B, N) each: train, valid and test with warm items, and `cold` with cold items of all splits.
    """

    train: sparse.csr_array
    valid: sparse.csr_array
    test: sparse.csr_array
    cold: sparse.csr_array


def _read_visits(shard: Shard, hidden: pl.DataFrame) -> _Visits:
    """Builds the interactions of the visitors and of the shop's own users.

    No shop has the visitors in its training data.
    """
    own = shard.events_with_ids().select("user", "item", pl.col("split").cast(pl.String), cold=pl.lit(value=False))
    table = pl.concat([own, hidden.with_columns(pl.col("split").cast(pl.String))])
    table = table.filter(pl.col("item").is_in(shard.item_ids))
    users = table["user"].unique().sort()
    items = pl.Series(shard.item_ids, dtype=pl.String)

    def matrix(chosen: pl.Expr) -> sparse.csr_array:
        some = table.filter(chosen)
        shape = (len(users), len(items))
        return interaction_matrix(row_numbers(some["user"], users), row_numbers(some["item"], items), shape)

    train, valid, test = (matrix(~pl.col("cold") & (pl.col("split") == split)) for split in SPLITS)
    return _Visits(train, valid, test, matrix(pl.col("cold")))
