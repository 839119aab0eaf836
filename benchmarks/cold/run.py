"""Measures the NDCG@10 of cold items by method and by silo size.

The command is `python -m benchmarks cold DATA`. Silos of several sizes rank with their own sums and with all silos'.
A draw hides a tenth of the items from all users, and ranks them among themselves for each user who has one of them.
Settings are chosen by a second tenth, of the items that are left; what the test hides is read once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from benchmarks.cold.methods import ColdTask, Rows, UserGains, make_cold_task, measure_user_gains
from benchmarks.cold.places import measure_places
from benchmarks.common import render_table
from client_service.data.interactions import build_shard
from client_service.models.cold_items import choose_cold_setting, fit_cold_items
from client_service.models.hidden_items import HIDDEN, hide_items, mean_gain
from client_service.text.encoders import CatalogueTexts, encode_items
from client_service.text.item_features import DEFAULT_WIDTH, attribute_columns
from shared.errors import DataError
from shared.method.graph import Float64
from shared.method.parameters import Float32
from simulation.datasets.load import load_dataset
from simulation.progress import print_progress

DIVISIONS = (256, 64, 16, 4)  # numbers of silos, where a silo then has SILO_USERS
SILO_USERS = range(9, 161)
MOST_SILOS = 6  # of one size that are measured in a draw
SPLIT_SEED = 0


@dataclass(frozen=True)
class FeaturedItems:
    """The interactions of a data set with the features of its items.

    interactions: (M, N), of all splits. features: (N, d). encoder: the name of what made them.
    """

    name: str
    interactions: sparse.csr_array
    features: Float32
    encoder: str = ""


def read_catalogue(path: Path, encoder: str = "projection", width: int = DEFAULT_WIDTH) -> FeaturedItems:
    """Reads a data set as one matrix, without its split.

    encoder, width: as `lpsfed encode` takes them; the default is what a silo has without it. Raises DataError if the
    items have neither titles nor attributes.
    """
    dataset = load_dataset(path, SPLIT_SEED)
    items = dataset.events.select(pl.col("item").unique().sort())
    if dataset.titles is not None:
        items = items.join(dataset.titles, on="item", how="left")
    shard = build_shard(dataset.name, dataset.events.with_columns(split=pl.lit("train")), items)
    if shard.titles is None and shard.features is None:
        raise DataError(f"{path}: expected titles or attributes of the items beside the interactions, got none")
    titles = shard.titles or (None,) * len(shard.item_ids)
    found = encode_items(CatalogueTexts(shard.item_ids, titles, attribute_columns(shard.features)), encoder, width)
    return FeaturedItems(dataset.name, shard.train, found.values, found.encoder)


def measure_methods(catalogue: FeaturedItems, draws: int) -> dict[str, UserGains]:
    """Measures each method in each draw."""
    found: dict[str, UserGains] = {}
    for draw in range(draws):
        task, wanted = draw_cold_task(catalogue, draw)
        for name, gains in measure_user_gains(task, wanted).items():
            found.setdefault(name, UserGains()).draws.append((task.users, gains))
        told = ", ".join(f"{name} {one.draws[-1][1].mean():.4f}" for name, one in found.items())
        print_progress(f"draw {draw + 1} of {draws}, {len(task.cold):,} cold items, {len(task.users):,} users: {told}")
    return found


def draw_cold_task(catalogue: FeaturedItems, draw: int) -> tuple[ColdTask, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Draws the hidden items of one draw and makes its task."""
    cold = hide_items(catalogue.interactions, np.random.default_rng([1000, draw]), HIDDEN)
    return make_cold_task(catalogue.interactions, catalogue.features, cold, draw)


def measure_silos(catalogue: FeaturedItems, draws: int) -> dict[int, tuple[UserGains, UserGains]]:
    """Measures silos of several sizes with their own sums and with all silos'.

    Returns both gains by the number of users of a silo. All silos have the whole catalogue.
    """
    users = catalogue.interactions.shape[0]
    sizes = {count: users // count for count in DIVISIONS if users // count in SILO_USERS}
    found = {size: (UserGains(), UserGains()) for size in sizes.values()}
    for draw in range(draws):
        task, wanted = draw_cold_task(catalogue, draw)
        pooled = fit_cold_items(task.train, task.features, choose_cold_setting(task.train, task.features, task.seed))
        for count, size in sizes.items():
            silo = np.random.default_rng([2000, draw]).permutation(users) % count
            gains: list[tuple[Rows, Float64, Float64]] = []
            for number in range(min(count, MOST_SILOS)):
                rows = np.flatnonzero(silo == number)
                asked = np.flatnonzero(np.isin(task.users, rows))
                own = task.train[rows]
                setting = choose_cold_setting(own, task.features, task.seed)
                scorers = (fit_cold_items(own, task.features, setting), pooled)
                baskets, cold = task.baskets[asked], task.features[task.cold]
                local, together = (mean_gain(one.score(baskets, cold), wanted[asked]) for one in scorers)
                gains.append((task.users[asked], local, together))
            for place in (0, 1):
                joined = np.concatenate([one[1 + place] for one in gains])
                found[size][place].draws.append((np.concatenate([one[0] for one in gains]), joined))
            local, together = (one.draws[-1][1].mean() for one in found[size])
            print_progress(
                f"draw {draw + 1} of {draws}, silos of {size} users: local {local:.4f}, federated {together:.4f}"
            )
    return found


BASES = ("plain_text", "knn")


def build_report(
    catalogue: FeaturedItems, methods: Mapping[str, UserGains], silos: Mapping[int, tuple[UserGains, UserGains]]
) -> dict[str, Any]:
    """Builds the JSON document of all figures."""
    users, items = catalogue.interactions.shape
    sizes = [
        {"users": size, "local": local.to_json(), "federated": whole.to_json(), "gain": whole.compare(local)}
        for size, (local, whole) in silos.items()
    ]
    return {
        "data": catalogue.name,
        "users": users,
        "items": items,
        "encoder": catalogue.encoder,
        "hidden": HIDDEN,
        "methods": {name: one.to_json() for name, one in methods.items()},
        "cold_over": {name: methods["cold"].compare(methods[name]) for name in BASES},
        "silos": sizes,
    }


def render_report(document: Mapping[str, Any]) -> str:
    """Renders the figures as tables."""
    lines = [
        [name, f"{one['ndcg@10']:.4f} ± {one['interval']:.4f}", " ".join(f"{value:.4f}" for value in one["draws"])]
        for name, one in document["methods"].items()
    ]
    over: Sequence[str] = [
        f"cold over {name}: {_format_comparison(one)}" for name, one in document["cold_over"].items()
    ]
    sizes = [
        [
            str(one["users"]),
            f"{one['local']['ndcg@10']:.4f}",
            f"{one['federated']['ndcg@10']:.4f}",
            _format_comparison(one["gain"]),
        ]
        for one in document["silos"]
    ]
    headings = ("places for new items", "NDCG@20 of the others", "beside no place", "recall@10 of new items")
    places = [
        [
            count,
            f"{one['warm_ndcg@20']:.4f}",
            f"x {one['warm_ratio']:.4f}, ± {one['warm_interval']:.4f}",
            f"{one['cold_recall@10']:.4f} ± {one['cold_interval']:.4f}",
        ]
        for count, one in document["places"].items()
    ]
    return "\n".join(
        [
            render_table(("method", "NDCG@10", "by draw"), lines),
            *("", *over),
            *("", render_table(("users of a silo", "local", "federated", "federated over local"), sizes)),
            *("", render_table(headings, places)),
        ]
    )


def _format_comparison(one: Mapping[str, Any]) -> str:
    return f"x {one['ratio']:.3f}, {one['difference']:+.4f} ± {one['interval']:.4f}"


def run_cold(path: Path, draws: int, encoder: str, width: int, *, as_json: bool) -> None:
    """Measures a data set and prints the figures."""
    catalogue = read_catalogue(path, encoder, width)
    document = build_report(catalogue, measure_methods(catalogue, draws), measure_silos(catalogue, draws))
    document["places"] = measure_places(draw_cold_task(catalogue, draw) for draw in range(draws))
    print(json.dumps(document, indent=1) if as_json else render_report(document))
