"""Realistic federations: how a data set's users, items and ids are spread over silos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.interaction_files import load_shard, shard_head
from shared.errors import DataError, SettingsError
from shared.words import count_noun
from simulation.datasets.dataset import Dataset
from simulation.partitioning.methods import FEWEST, METHODS
from simulation.partitioning.partition import Partition, partition_shops, require_clients, training_graph
from simulation.progress import step

LATE_USERS = 20  # of the silo that joins after the run, in `late-joiner`
LARGE_SHARE = 0.7  # of all users, in the large silo of `big-and-tiny`
SMALL_USERS = 25  # of the small shop in `disjoint` and `disjoint-genres`, unless --small is given
VISITOR_SHARE = 0.25  # of the other users, who are in no shop: they measure how well the small one serves strangers
COLD_SHARE = 0.1  # of the items of each such shop, without interactions while the shops learn
GENRES = ("genres", "genre", "category", "categories")  # columns by which `disjoint-genres` divides items
COMMON_SHARE = 0.6  # of the catalogue that all regions sell, in `regional`
RENAMED = r"^own-\d+-(.+)$"  # the ids that a silo alone uses, in `ids-differ`
OWN_IDS = 0.3  # of the items that a silo calls by an id of its own, in `ids-differ`

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Scenario:
    """Realistic kind of federation.

    title: in words. place_users: (data set, silos, seed) -> the silo (M,) of each user with a training item, users
    sorted by id. change: (data set, users and their silos, seed) -> the data set as the silos have it. place_items:
    (data set, silos, seed) -> item and shop; each shop sells its own items alone, some without interactions.
    """

    title: str
    place_users: Callable[[Dataset, int, int], Int64]
    change: Callable[[Dataset, pl.DataFrame, int], Dataset] | None = None
    place_items: Callable[[Dataset, int, int], pl.DataFrame] | None = None


def _place_by(method: str) -> Callable[[Dataset, int, int], Int64]:
    def place(dataset: Dataset, silos: int, seed: int) -> Int64:
        return METHODS[method](training_graph(dataset)[2], silos, seed).users

    return place


def _place_one_large(dataset: Dataset, silos: int, seed: int) -> Int64:
    """Places 70 % of the users in one silo; the others share the rest equally."""
    users = len(training_graph(dataset)[0])
    order, large = np.random.default_rng(seed).permutation(users), round(LARGE_SHARE * users)
    placed = np.zeros(users, dtype=np.int64)
    if silos > 1:
        placed[order[large:]] = 1 + np.arange(users - large) % (silos - 1)
    return placed


def _place_one_small(dataset: Dataset, silos: int, seed: int, small: int = SMALL_USERS) -> Int64:
    """Places few users in one shop and divides the rest equally among the others.

    Raises DataError for fewer than two shops, a small shop of too few users, or another of no more users than it.
    """
    users = len(training_graph(dataset)[0])
    if silos < 2 or small < FEWEST or (users - small) // (silos - 1) <= small:
        words = f"expected 2 or more clients, and a small one of {FEWEST} users or more, less than each other"
        raise DataError(f"scenario disjoint: {words}, got {silos} clients, {small} of {users:,} users in the small one")
    order = np.random.default_rng(seed).permutation(users)
    placed = np.full(users, silos - 1, dtype=np.int64)
    placed[order[small:]] = np.arange(users - small) % (silos - 1)
    return placed


def _spread_items(dataset: Dataset, silos: int, seed: int) -> pl.DataFrame:
    """Places each item in one shop at random, in equal parts."""
    items = _sorted_items(dataset)
    drawn = np.random.default_rng([seed, 2]).permutation(len(items)) % silos
    return pl.DataFrame({"item": items, "shop": drawn})


def _spread_genres(dataset: Dataset, silos: int, seed: int) -> pl.DataFrame:
    """Places each item in the shop of its first genre.

    Genres go to the shop with the fewest items so far, the largest first, equally large ones in drawn order.
    """
    titles = dataset.titles
    column = None if titles is None else next((name for name in GENRES if name in titles.columns), None)
    if titles is None or column is None:
        raise DataError(f"scenario disjoint-genres: expected items with one of {', '.join(GENRES)}, got none")
    items = _sorted_items(dataset).to_frame("item")
    first = pl.col(column).cast(pl.String).str.split("|").list.first().fill_null("")
    items = items.join(titles.select("item", genre=first), on="item", how="left").with_columns(
        pl.col("genre").fill_null("")
    )
    counts = items["genre"].value_counts().sort("genre")
    order, sizes, shops = np.random.default_rng([seed, 2]).permutation(len(counts)), np.zeros(silos), {}
    for genre, count in counts[order].sort("count", descending=True, maintain_order=True).iter_rows():
        shops[genre] = int(np.argmin(sizes))
        sizes[shops[genre]] += count
    turned = np.random.default_rng([seed, 3]).permutation(silos)
    return items.select(
        "item", shop=pl.col("genre").replace_strict({one: int(turned[two]) for one, two in shops.items()})
    )


def _separate_shops(
    dataset: Dataset, placed: pl.DataFrame, sold: pl.DataFrame, seed: int
) -> tuple[Dataset, pl.DataFrame, pl.DataFrame]:
    """Removes interactions with other shops' items and with cold items from a data set.

    Returns the changed data set, the shops of the users without the visitors, and the interactions that are kept for
    the evaluation: those of visitors with the small shop's items, and those of the shops' own users with cold items.
    """
    cold = sold.filter(pl.Series(np.random.default_rng([seed, 4]).random(len(sold)) < COLD_SHARE))["item"]
    small, drawn = int(placed["shop"].max()), np.random.default_rng([seed, 5]).random(len(placed))  # type: ignore[arg-type]
    visits = pl.Series(drawn < VISITOR_SHARE) & (placed["shop"] != small)
    visitors, members = placed.filter(visits).with_columns(shop=pl.lit(small, dtype=pl.Int64)), placed.filter(~visits)

    def keep(events: pl.DataFrame, users: pl.DataFrame) -> pl.DataFrame:
        own = events.join(users, on="user", how="inner", maintain_order="left")
        return own.join(sold, on=("item", "shop"), how="inner", maintain_order="left").drop("shop")

    is_cold = pl.col("item").is_in(cold.implode())
    inside = keep(dataset.events, members)
    kept = inside.filter(~is_cold)
    known = kept.filter(pl.col("split") == "train")["user"].unique()
    kept = kept.filter(pl.col("user").is_in(known.implode()))
    met = None if dataset.met is None else keep(dataset.met, members).filter(~is_cold)
    lost = count_noun(len(dataset.events) - len(kept), "interaction")
    judged = keep(dataset.events, visitors)
    hidden = (
        pl.concat([inside.filter(is_cold & pl.col("user").is_in(known.implode())), judged])
        .with_columns(cold=is_cold)
        .select("user", "item", "split", "cold")
    )
    notes = (
        f"{lost} with items of another shop, or of users or items that are kept for an evaluation, left out",
        f"{count_noun(visitors.height, 'user')} and {count_noun(len(cold), 'item')} are kept for an evaluation",
    )
    found = None if met is None or met.is_empty() else met
    changed = replace(dataset, events=kept, met=found, notes=(*dataset.notes, *notes))
    return changed, members, hidden.join(sold, on="item", how="left")


def _list_cold_items(partition: Partition, hidden: pl.DataFrame, placed: pl.DataFrame) -> Partition:
    """Adds each shop's cold items, without any interaction, to its own items."""
    parts = []
    for part in partition.parts:
        shop = int(placed.filter(pl.col("user") == part.users[0])["shop"][0])
        cold = hidden.filter((pl.col("shop") == shop) & pl.col("cold"))["item"]
        items = pl.concat([part.items, cold]).unique().sort()
        parts.append(replace(part, items=items, unmet=items.clear(), sizes=replace(part.sizes, items=len(items))))
    return replace(partition, parts=tuple(parts), hidden=hidden.drop("shop"))


def _place_one_late(dataset: Dataset, silos: int, seed: int) -> Int64:
    """Places 20 users in one silo; the others share the rest equally.

    Raises DataError if another silo has not more users than it.
    """
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
    """Leaves 60 % of the items to all silos, each other to one silo.

    The silo is drawn.
    """
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
    """Gives 30 % of each silo's items an id that it alone uses.

    They are drawn anew for each silo.
    """
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
    """Spells titles as another shop would.

    As they are, in capitals, with the medium, or with the article at the end.
    """
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
    "disjoint": Scenario(
        "shops without a common item or user, one of them small",
        _place_one_small,
        place_items=_spread_items,
    ),
    "disjoint-genres": Scenario(
        "shops without a common item or user that sell different genres, one of them small",
        _place_one_small,
        place_items=_spread_genres,
    ),
    "taste": Scenario("users of like taste in one silo", _place_by("users")),
}


def find_late_silos(name: str, shards: Sequence[Path]) -> tuple[Path, ...]:
    """Finds the shards of a scenario whose silos join after the run.

    In `late-joiner` it is the one of the fewest users.
    """
    if name != "late-joiner":
        return ()
    return (min(shards, key=lambda path: shard_head(load_shard(path)).users),)


@step("dividing the data")
def divide_by_scenario(
    dataset: Dataset, name: str, silos: int, seed: int, small: int | None = None
) -> tuple[Dataset, Partition]:
    """Divides a data set by a scenario.

    Returns the data set as the silos have it, and its parts. small: users of the small shop in scenarios that have one.

    Raises DataError for an unknown scenario, too many silos, or a silo that is left with fewer than 2 users or items.
    """
    if (scenario := SCENARIOS.get(name)) is None:
        raise DataError(f"scenario: expected one of {', '.join(SCENARIOS)}, got {name!r}")
    users = training_graph(dataset)[0]
    require_clients(silos, len(users))
    place = scenario.place_users
    if scenario.place_items is not None:
        place = partial(_place_one_small, small=SMALL_USERS if small is None else small)
    elif small is not None:
        raise SettingsError(f"--small: expected it with --scenario disjoint or disjoint-genres alone, got {name}")
    placed = pl.DataFrame({"user": users, "shop": place(dataset, silos, seed)})
    changed, hidden = dataset if scenario.change is None else scenario.change(dataset, placed, seed), None
    if scenario.place_items is not None:
        changed, placed, hidden = _separate_shops(dataset, placed, scenario.place_items(dataset, silos, seed), seed)
    partition = replace(partition_shops(changed, placed), method=name, seed=seed)
    if hidden is not None:
        partition = _list_cold_items(partition, hidden, placed)
    return changed, replace(partition, notes=(scenario.title, *partition.notes))
