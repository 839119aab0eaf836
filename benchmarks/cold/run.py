"""Measures the NDCG@10 of cold items by method and by silo size.

The command is `python -m benchmarks cold DATA`. Silos of several sizes rank with their own sums and with all silos'.
A draw hides a tenth of the items from everybody, and ranks them among themselves for each user who has one of them.
Settings are chosen by a second tenth, of the items that are left; what the test hides is read once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from benchmarks.cold.methods import ColdTask, Rows, make_cold_task, measure_user_gains
from benchmarks.cold.places import average_places, measure_places
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
from simulation.progress import tell_progress

NORMAL = 1.96  # half-widths of 95 % intervals in standard errors
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

    encoder, width: as `lpsfed encode` takes them; the default is what a silo has without it. Raises DataError where the
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


@dataclass
class UserGains:
    """The NDCG@10 of one method by draw and user.

    The mean is taken over the users of a draw, then over draws.
    """

    draws: list[tuple[Rows, Float64]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Computes the mean over draws."""
        return float(np.mean([gains.mean() for _, gains in self.draws]))

    def interval_half_width(self, base: UserGains | None = None) -> float:
        """Computes half the width of the 95 % confidence interval of the mean.

        The interval is over users, each of whom may occur in several draws. base: if given, the interval is that of the
        difference to it.
        """
        parts = []
        for place, (users, gains) in enumerate(self.draws):
            moved = gains if base is None else gains - base.draws[place][1]
            influence = (moved - moved.mean()) / (len(moved) * len(self.draws))
            parts.append(pl.DataFrame({"user": users, "influence": influence}))
        by_user = pl.concat(parts).group_by("user").agg(pl.col("influence").sum())["influence"]
        return NORMAL * float(np.sqrt(np.square(by_user.to_numpy()).sum()))

    def to_json(self) -> dict[str, Any]:
        """Builds the JSON figures: mean, interval and the mean of each draw."""
        each = [float(gains.mean()) for _, gains in self.draws]
        return {
            "ndcg@10": round(self.value, 4),
            "interval": round(self.interval_half_width(), 4),
            "draws": np.round(each, 4).tolist(),
        }

    def compare(self, base: UserGains) -> dict[str, Any]:
        """Compares this method with another one on the same users."""
        low = self.value - base.value - self.interval_half_width(base)
        found = {
            "ratio": self.value / base.value,
            "difference": self.value - base.value,
            "interval": self.interval_half_width(base),
        }
        return {name: round(value, 4) for name, value in found.items()} | {"above": bool(low > 0.0)}


def measure_methods(catalogue: FeaturedItems, draws: int) -> dict[str, UserGains]:
    """Measures each method in each draw."""
    found: dict[str, UserGains] = {}
    for draw in range(draws):
        task, wanted = draw_cold_task(catalogue, draw)
        for name, gains in measure_user_gains(task, wanted).items():
            found.setdefault(name, UserGains()).draws.append((task.users, gains))
        told = ", ".join(f"{name} {one.draws[-1][1].mean():.4f}" for name, one in found.items())
        tell_progress(f"draw {draw + 1} of {draws}, {len(task.cold):,} cold items, {len(task.users):,} users: {told}")
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
            tell_progress(
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
    names = ("warm_ndcg@20", "warm_ratio", "cold_recall@10")
    places = [[count, *(f"{one[name]:.4f}" for name in names)] for count, one in document["places"].items()]
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
    document["places"] = average_places([measure_places(*draw_cold_task(catalogue, draw)) for draw in range(draws)])
    print(json.dumps(document, indent=1) if as_json else render_report(document))
