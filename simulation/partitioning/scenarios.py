"""Realistic federations: how a data set's users, items and ids are spread over silos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.interaction_files import load_shard, shard_head
from shared.errors import DataError
from shared.words import count_noun
from simulation.datasets.dataset import Dataset
from simulation.partitioning.methods import METHODS
from simulation.partitioning.partition import Partition, partition_shops, require_clients, training_graph
from simulation.progress import step

LATE_USERS = 20  # of the silo that joins after the run, in `late-joiner`
LARGE_SHARE = 0.7  # of all users, in the large silo of `big-and-tiny`
COMMON_SHARE = 0.6  # of the catalogue that all regions sell, in `regional`
RENAMED = r"^own-\d+-(.+)$"  # the ids that a silo alone uses, in `ids-differ`
OWN_IDS = 0.3  # of the items that a silo calls by an id of its own, in `ids-differ`

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Scenario:
    """One kind of federation.

    title: in words. place_users: (data set, silos, seed) -> the silo (M,) of each user with a training item, users
    sorted by id. change: (data set, users and their silos, seed) -> the data set as the silos have it.
    """

    title: str
    place_users: Callable[[Dataset, int, int], Int64]
    change: Callable[[Dataset, pl.DataFrame, int], Dataset] | None = None


def _place_by(method: str) -> Callable[[Dataset, int, int], Int64]:
    def place(dataset: Dataset, silos: int, seed: int) -> Int64:
        return METHODS[method](training_graph(dataset)[2], silos, seed).users

    return place


def _place_one_large(dataset: Dataset, silos: int, seed: int) -> Int64:
    """One silo of 70 % of the users; the others share the rest equally."""
    users = len(training_graph(dataset)[0])
    order, large = np.random.default_rng(seed).permutation(users), round(LARGE_SHARE * users)
    placed = np.zeros(users, dtype=np.int64)
    if silos > 1:
        placed[order[large:]] = 1 + np.arange(users - large) % (silos - 1)
    return placed


def _place_one_late(dataset: Dataset, silos: int, seed: int) -> Int64:
    """One silo of 20 users; the others share the rest equally. DataError where another has not more than it."""
    users = len(training_graph(dataset)[0])
    if silos < 2 or (users - LATE_USERS) // (silos - 1) <= LATE_USERS:
        most = max(1, (users - LATE_USERS) // (LATE_USERS + 1) + 1)
        words = f"expected 2 to {most} clients, so that each other silo has more than the late one's {LATE_USERS} users"
        raise DataError(f"scenario late-joiner: {words}, got {silos}")
    order = np.random.default_rng(seed).permutation(users)
    placed = np.full(users, silos - 1, dtype=np.int64)
    placed[order[LATE_USERS:]] = np.arange(users - LATE_USERS) % (silos - 1)
    return placed


def _drop_other_regions(dataset: Dataset, silo_of_user: pl.DataFrame, seed: int) -> Dataset:
    """Leaves 60 % of the items to all silos, and each other item to one silo drawn for it."""
    items = _sorted_items(dataset)
    generator, silos = np.random.default_rng(seed), int(silo_of_user["shop"].n_unique())
    region = np.where(generator.random(len(items)) < COMMON_SHARE, -1, generator.integers(silos, size=len(items)))
    sold = pl.DataFrame({"item": items, "region": region})

    def keep(events: pl.DataFrame) -> pl.DataFrame:
        placed = events.join(silo_of_user, on="user", how="inner", maintain_order="left").join(
            sold, on="item", how="inner", maintain_order="left"
        )
        return placed.filter((pl.col("region") < 0) | (pl.col("region") == pl.col("shop"))).drop("shop", "region")

    kept = keep(dataset.events)
    known = kept.filter(pl.col("split") == "train")["user"].unique()
    kept = kept.filter(pl.col("user").is_in(known.implode()))
    lost = count_noun(len(dataset.events) - len(kept), "interaction")
    met = None if dataset.met is None else keep(dataset.met)
    return replace(
        dataset,
        events=kept,
        met=None if met is None or met.is_empty() else met,
        notes=(*dataset.notes, f"{lost} with items of another silo's region left out"),
    )


def _rename_items(dataset: Dataset, silo_of_user: pl.DataFrame, seed: int) -> Dataset:
    """Gives 30 % of the items, drawn anew for each silo, an id that this silo alone uses."""
    items, silos = _sorted_items(dataset), int(silo_of_user["shop"].n_unique())
    renamed = np.random.default_rng(seed).random((silos, len(items))) < OWN_IDS
    shops, places = np.nonzero(renamed)
    own = pl.DataFrame({"shop": shops, "item": items.gather(places)})
    own = own.with_columns(own=pl.format("own-{}-{}", pl.col("shop") + 1, "item"))

    def rename(events: pl.DataFrame) -> pl.DataFrame:
        placed = events.join(silo_of_user, on="user", how="inner", maintain_order="left").join(
            own, on=("shop", "item"), how="left", maintain_order="left"
        )
        return placed.with_columns(item=pl.coalesce("own", "item")).select(events.columns).sort("user", "item")

    titles = dataset.titles
    if titles is not None:
        again = own.join(titles, on="item", how="inner", maintain_order="left")
        kinds = np.random.default_rng([seed, 1]).integers(4, size=len(again))
        again = again.with_columns(item="own", title=_respell(kinds))
        titles = pl.concat([titles, again.select(titles.columns)])
    met = None if dataset.met is None else rename(dataset.met)
    return replace(
        dataset,
        events=rename(dataset.events),
        met=None if met is None or met.is_empty() else met,
        titles=titles,
        notes=(*dataset.notes, f"{OWN_IDS:.0%} of the items have an id of their own in each silo"),
    )


def _respell(kinds: Int64) -> pl.Expr:
    """Titles as another shop writes them: as they are, in capitals, with the medium, or with the article at the end."""
    kind, title = pl.lit(pl.Series(kinds)), pl.col("title")
    moved = title.str.replace(r"^(The|A|An) (.+)$", "${2}, ${1}")
    return (
        pl.when(kind == 1)
        .then(title.str.to_uppercase())
        .when(kind == 2)
        .then(title + " [DVD]")
        .when(kind == 3)
        .then(moved)
        .otherwise(title)
    )


def _sorted_items(dataset: Dataset) -> pl.Series:
    tables = [dataset.events["item"], *([] if dataset.met is None else [dataset.met["item"]])]
    return pl.concat(tables).unique().sort()


SCENARIOS: Mapping[str, Scenario] = {
    "chain": Scenario("shops of one chain: the same items, users at random", _place_by("random")),
    "big-and-tiny": Scenario("one silo of 70 % of the users, the others share the rest", _place_one_large),
    "regional": Scenario(
        "60 % of the items are sold everywhere, each other in one silo", _place_by("random"), _drop_other_regions
    ),
    "ids-differ": Scenario("30 % of the items have another id in each silo", _place_by("random"), _rename_items),
    "late-joiner": Scenario("a silo of 20 users joins after the run, the others share the rest", _place_one_late),
    "taste": Scenario("users of like taste in one silo", _place_by("users")),
}


def find_late_silos(name: str, shards: Sequence[Path]) -> tuple[Path, ...]:
    """Of a scenario's shards those whose silos join after the run: in `late-joiner` the one of the fewest users."""
    if name != "late-joiner":
        return ()
    return (min(shards, key=lambda path: shard_head(load_shard(path)).users),)


@step("dividing the data")
def divide_by_scenario(dataset: Dataset, name: str, silos: int, seed: int) -> tuple[Dataset, Partition]:
    """Divides a data set as a scenario says: the data set as the silos have it, and its parts.

    Raises DataError for an unknown scenario, too many silos, or a silo that is left with fewer than 2 users or items.
    """
    if (scenario := SCENARIOS.get(name)) is None:
        raise DataError(f"scenario: expected one of {', '.join(SCENARIOS)}, got {name!r}")
    users = training_graph(dataset)[0]
    require_clients(silos, len(users))
    placed = pl.DataFrame({"user": users, "shop": scenario.place_users(dataset, silos, seed)})
    changed = dataset if scenario.change is None else scenario.change(dataset, placed, seed)
    partition = replace(partition_shops(changed, placed), method=name, seed=seed)
    return changed, replace(partition, notes=(scenario.title, *partition.notes))
