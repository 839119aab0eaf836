"""A small shop of boots and novels, with items that nobody has bought yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from client_service.data.interaction_files import change_shard, write_shard
from client_service.data.interactions import with_unmet_items

KINDS = ("boots", "novel")
SOLD, NEW = 16, 4  # items of each kind
BOUGHT = 8  # by each user, all of one kind
WORDS = ("black", "brown", "red", "green", "winter", "summer", "light", "heavy")


def write_shop(folder: Path, *, users: int = 24, new: int = NEW, titled: bool = True, unmet: bool = False) -> Path:
    """Writes the shop's shard: even users buy boots, odd ones novels.

    unmet: items that nobody has bought have no row.
    """
    rng, rows = np.random.default_rng(7), []
    for user in range(users):
        chosen = rng.permutation(SOLD)[:BOUGHT]
        splits = ("train",) * (BOUGHT - 2) + ("valid", "test")
        rows += [
            (f"user-{user:02}", f"{KINDS[user % 2]}-{item:02}", split)
            for item, split in zip(chosen, splits, strict=True)
        ]
    events = pl.DataFrame(rows, schema=["user", "item", "split"], orient="row")
    ids = [f"{kind}-{item:02}" for kind in KINDS for item in range(SOLD)]
    ids += [f"new-{kind}-{item}" for kind in KINDS for item in range(new)]
    titles = [_title(one) if titled else None for one in ids]
    kinds = [next(kind for kind in KINDS if kind in one) if titled else None for one in ids]
    items = pl.DataFrame(
        {"item": ids, "title": titles, "kind": kinds}, schema=dict.fromkeys(("item", "title", "kind"), pl.String)
    )
    sold = items.filter(~pl.col("item").str.starts_with("new-")) if unmet else items
    write_shard(folder, folder.name, events, sold if titled else sold.drop("kind"))
    if unmet:
        change_shard(folder, lambda shard: with_unmet_items(shard, items))
    return folder


def _title(item: str) -> str:
    kind, number = next(kind for kind in KINDS if kind in item), int(item[-1])
    return f"{WORDS[number % len(WORDS)]} {kind} of {WORDS[(number + 3) % len(WORDS)]}".capitalize()
