"""Partition of a Dataset into disjoint groups of users, with their shard folders.

Each group has a catalogue. Groups are made from training interactions alone; validation and test pairs follow. An item
without a training interaction has no place in the graph and is left out, as putting it where its test pairs are would
leak them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.events import SPLITS, row_numbers
from client_service.data.interaction_files import save_shard
from client_service.data.interactions import Shard, build_shard, with_unmet_items
from shared.errors import DataError
from shared.method.graph import interaction_matrix
from shared.words import count_noun, counted_lines
from simulation.datasets.dataset import Dataset, describe_unmet, join_met
from simulation.partitioning.methods import FEWEST, METHODS, Groups
from simulation.partitioning.sources import number_silos
from simulation.progress import step

Int64 = NDArray[np.int64]
MANY_NAMED = 8  # parts that an error names


@dataclass(frozen=True)
class PartSizes:
    """Sizes of one client after the cut."""

    users: int
    items: int
    train: int
    valid: int
    test: int


@dataclass(frozen=True, eq=False)
class ClientPart:
    """One client: its users, each with a training item, and its catalogue, ids sorted.

    met: known pairs that no list may repeat, see `_met_events`; None if there is nothing. unmet: items that it lists
    without interactions; None: all that the data set describes.
    """

    name: str
    users: pl.Series
    items: pl.Series
    sizes: PartSizes
    met: pl.DataFrame | None = None
    unmet: pl.Series | None = None


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients of a partition.

    parts: largest first, by training interactions, then users, then items. edges_kept: share of the training
    interactions that lie inside a client. notes: small parts and dropped pairs, counted. hidden: (user, item, split,
    cold) of users who are in no client, and of items without interactions that clients list, kept for an evaluation
    alone; None if there are none.
    """

    method: str
    seed: int
    parts: tuple[ClientPart, ...]
    edges_kept: float
    notes: tuple[str, ...]
    hidden: pl.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class _LabelledGraph:
    """Training graph with the client of each of its users and items.

    -1 for none; no items where they follow users.
    """

    users: pl.Series
    items: pl.Series
    graph: sparse.csr_array
    groups: Groups


@step("dividing the data")
def partition_dataset(dataset: Dataset, *, clients: int, method: str, seed: int) -> Partition:
    """Divides a data set among `clients`.

    spectral: users and items together by pivoted-QR spectral clustering, edges between clients dropped; users: users
    alone by the same rule; random: users at random, in equal parts; ego: users by the nearest of `clients` drawn users,
    items by majority; interconnected: users as in spectral. Where items are not divided, a client has every item its
    users have a training interaction with, and nothing is dropped. The spectral cuts leave no small part, see
    `methods.cut_without_small_parts`.

    Raises DataError for an unknown method, too many clients, a client with fewer than 2 users or 2 items, or a spectral
    cut that does not find enough large clients.
    """
    if method not in METHODS:
        raise DataError(f"partition: expected one of {', '.join(METHODS)}, got {method!r}")
    users, items, graph = training_graph(dataset)
    require_clients(clients, len(users))
    labelled = _LabelledGraph(users, items, graph, METHODS[method](graph, clients, seed))
    return _divide(dataset, labelled, clients, method, seed)


def require_clients(clients: int, users: int) -> None:
    """Raises DataError for more clients than so few users allow."""
    most, there = users // FEWEST, count_noun(users, "user")
    if not most:
        raise DataError(f"partition: expected {FEWEST} or more users with a training item, got {there}")
    if not 1 <= clients <= most:
        expected = "1 client" if most == 1 else f"1 to {most} clients"
        raise DataError(f"partition: expected {expected} for {there}, got {clients}")


@step("dividing the data")
def partition_shops(dataset: Dataset, shops: pl.DataFrame, new: pl.DataFrame | None = None) -> Partition:
    """Divides a data set by given shops.

    A shop has all items that it has sold. shops: each user's shop, from 0. new: item, shop, of the items without
    interactions that a shop lists; None: all shops list all such items.
    """
    users, items, graph = training_graph(dataset)
    labels = pl.DataFrame({"user": users}).join(shops, on="user", how="left", maintain_order="left")["shop"]
    groups = Groups(labels.to_numpy().astype(np.int64))
    found = _divide(dataset, _LabelledGraph(users, items, graph, groups), shops["shop"].n_unique(), "shops", 0)
    if new is None:
        return found
    shop_of = dict(shops.iter_rows())
    parts = [replace(one, unmet=new.filter(pl.col("shop") == shop_of[one.users[0]])["item"]) for one in found.parts]
    return replace(found, parts=tuple(parts))


def training_graph(dataset: Dataset) -> tuple[pl.Series, pl.Series, sparse.csr_array]:
    """Returns users and items with a training interaction, sorted, and their matrix."""
    train = dataset.events.filter(pl.col("split") == "train")
    users, items = (train[column].unique().sort() for column in ("user", "item"))
    rows, columns = row_numbers(train["user"], users), row_numbers(train["item"], items)
    return users, items, interaction_matrix(rows, columns, (len(users), len(items)))


def _divide(dataset: Dataset, labelled: _LabelledGraph, clients: int, method: str, seed: int) -> Partition:
    members = [_client_members(labelled, client) for client in range(clients)]
    divided, owned = labelled.groups.items is not None, [users for users, _ in members]
    positive = divide_by_user(dataset.events, owned)
    met = None if dataset.met is None else [dataset.met] if clients == 1 else divide_by_user(dataset.met, owned)
    found = [_client_part(own, *lists) for own, lists in zip(positive, members, strict=True)]
    _require_large_parts(found, method, labelled.groups.least)
    for number, (part, own) in enumerate(zip(found, positive, strict=True)):
        known = _met_events(None if met is None else met[number], None if divided else own, part.items)
        found[number] = replace(part, met=known)
    parts = _ordered_parts(found)
    kept = sum(part.sizes.train for part in parts)
    notes = (*labelled.groups.notes, *_loss_notes(dataset, parts, divided=divided))
    return Partition(method, seed, parts, kept / labelled.graph.nnz, notes)


@step("writing the shards")
def write_partition(dataset: Dataset, partition: Partition, folder: Path) -> list[Path]:
    """Writes each part as a shard folder, `folder/client-1` and so on; returns the folders.

    Raises DataError if `folder` has shards of an earlier partition beside the new ones.
    """
    names = {part.name for part in partition.parts}
    earlier = sorted(path.name for path in folder.glob("client-*") if path.name not in names)
    if earlier:
        expected = f"expected no other clients than {len(names)} new ones"
        raise DataError(f"{folder}: {expected}, got also {', '.join(earlier)}")
    notes = (f"one of {len(names)} parts of {dataset.name}: {partition.method}, seed {partition.seed}",)
    unmet, owned = describe_unmet(dataset), divide_by_user(dataset.events, [part.users for part in partition.parts])
    for part, events in zip(partition.parts, owned, strict=True):
        save_shard(folder / part.name, _build_shard_of_part(dataset, part, part.name, notes, events, unmet))
    return [folder / part.name for part in partition.parts]


def build_part(dataset: Dataset, part: ClientPart, name: str, notes: Sequence[str]) -> Shard:
    """Builds the shard of one client, under this name."""
    [events] = divide_by_user(dataset.events, [part.users])
    return _build_shard_of_part(dataset, part, name, notes, events, describe_unmet(dataset))


def divide_by_user(events: pl.DataFrame, owned: Sequence[pl.Series]) -> list[pl.DataFrame]:
    """Divides events by lists of users in one pass.

    No user is in two lists. Events of users in no list are left out.
    """
    counts = [len(users) for users in owned]
    owners = pl.DataFrame({"user": pl.concat(owned), "owner": np.repeat(np.arange(len(owned)), counts)})
    joined = events.join(owners, on="user", how="inner", maintain_order="left")
    found = joined.partition_by("owner", maintain_order=True, include_key=False, as_dict=True)
    return [found.get((number,), events.clear()) for number in range(len(owned))]


def _build_shard_of_part(
    dataset: Dataset,
    part: ClientPart,
    name: str,
    notes: Sequence[str],
    events: pl.DataFrame,
    unmet: pl.DataFrame | None,
) -> Shard:
    """Builds a shard from the events of the part's users."""
    catalogue = pl.DataFrame({"item": part.items})
    if dataset.titles is not None:
        catalogue = catalogue.join(dataset.titles, on="item", how="left")
    events = join_met(events.filter(pl.col("item").is_in(part.items.implode())), part.met)
    shard = build_shard(name, events, catalogue, notes)
    if unmet is not None and part.unmet is not None:
        unmet = unmet.filter(pl.col("item").is_in(part.unmet.implode()))
    return replace(with_unmet_items(shard, unmet), rating=dataset.meaning)


def _client_members(labelled: _LabelledGraph, client: int) -> tuple[pl.Series, pl.Series]:
    """Returns users and catalogue of one client.

    A user whose training items are all outside is in no client.
    """
    rows = np.flatnonzero(labelled.groups.users == client)
    inside = labelled.graph[rows]
    columns = np.flatnonzero(np.bincount(inside.indices, minlength=len(labelled.items)))
    if labelled.groups.items is not None:
        columns = np.flatnonzero(labelled.groups.items == client)
    trained = rows[np.diff(inside[:, columns].indptr) > 0]
    return labelled.users.gather(trained), labelled.items.gather(columns)


def _met_events(met: pl.DataFrame | None, positive: pl.DataFrame | None, items: pl.Series) -> pl.DataFrame | None:
    """Returns known pairs of a client's users that are not positive.

    Of a single client those of other users too. positive: where items are not divided among clients, the positive
    events of its users. The validation and test items outside its catalogue are among them: they are neither trained
    nor evaluated on, and no list may repeat them once they are inside.
    """
    tables = [] if met is None else [met]
    if positive is not None:
        tables.append(positive.filter(~pl.col("item").is_in(items.implode())).drop("split"))
    found = pl.concat(tables, how="diagonal") if tables else pl.DataFrame()
    return None if found.is_empty() else found


def _client_part(events: pl.DataFrame, users: pl.Series, items: pl.Series) -> ClientPart:
    """Counts the events of a client's users that are inside its catalogue, by split."""
    inside = events.filter(pl.col("item").is_in(items.implode()))
    counts = dict(inside["split"].value_counts().iter_rows())
    train, valid, test = (int(counts.get(split, 0)) for split in SPLITS)
    return ClientPart("", users, items, PartSizes(len(users), len(items), train, valid, test))


def _require_large_parts(parts: Sequence[ClientPart], method: str, least: int) -> None:
    """Raises DataError for parts with too few users or items."""
    small = [part for part in parts if part.sizes.users < least or part.sizes.items < FEWEST]
    if small:
        sizes = ", ".join(
            f"{count_noun(part.sizes.users, 'user')} and {count_noun(part.sizes.items, 'item')}"
            for part in small[:MANY_NAMED]
        )
        sizes += f" and {len(small) - MANY_NAMED} more" if len(small) > MANY_NAMED else ""
        each = "the one client" if len(parts) == 1 else f"each of {len(parts)} clients"
        expected = f"expected at least {least} users and {FEWEST} items at {each}"
        raise DataError(f"partition: {expected} by {method!r}, got {sizes}; try fewer clients")


def _ordered_parts(parts: Sequence[ClientPart]) -> tuple[ClientPart, ...]:
    """Orders the parts from large to small, as client-1, client-2 and so on.

    Numbers have leading zeros, so that names sort.
    """
    ordered = sorted(parts, key=lambda part: (-part.sizes.train, -part.sizes.users, -part.sizes.items, part.users[0]))
    return tuple(
        replace(part, name=f"client-{number}") for number, part in zip(number_silos(len(ordered)), ordered, strict=True)
    )


def _loss_notes(dataset: Dataset, parts: Sequence[ClientPart], *, divided: bool) -> tuple[str, ...]:
    """Describes pairs, users and items that are in no client, or not as positive ones."""
    events = dataset.events
    whole = dict(events["split"].value_counts().iter_rows())
    lost = {split: whole.get(split, 0) - sum(getattr(part.sizes, split) for part in parts) for split in SPLITS}
    users = events["user"].n_unique() - sum(part.sizes.users for part in parts)
    items = events["item"].n_unique() - pl.concat([part.items for part in parts]).n_unique()
    moved = 0 if divided else lost["valid"] + lost["test"]
    kept = sum(len(part.met) for part in parts if part.met is not None) - moved
    met = 0 if dataset.met is None else len(dataset.met) - kept
    whole_silo = len(parts) == 1 and lost["train"] == 0
    where = "of items without a training interaction" if whole_silo else "with items that the client lacks"
    fate = "dropped" if divided else "counted as seen, not evaluated"
    counted = [
        (lost["train"], "training interaction", "between clients: dropped"),
        (lost["valid"], "validation interaction", f"{where}: {fate}"),
        (lost["test"], "test interaction", f"{where}: {fate}"),
        (users, "user", f"without a training item{'' if whole_silo else ' inside a client'} dropped"),
        (items, "item", f"without a training interaction{'' if whole_silo else ' or a client'} dropped"),
        (met, "interaction", "below the smallest rating dropped: its user is in no client"),
    ]
    return tuple(counted_lines(counted))
