"""Shards -> the list of all their items, which the clients of some algorithms share."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from client_service.shard import read_shard

CATALOGUE = "catalogue.txt"


def write_catalogue(shards: tuple[Path, ...], folder: Path) -> Path:
    """Write the ids of all items of all shards, sorted, one a line, and return the file."""
    lists = [pl.Series("item", read_shard(path).item_ids, dtype=pl.String) for path in shards]
    items = pl.concat(lists).unique().sort()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CATALOGUE
    path.write_text("\n".join(items) + "\n", encoding="utf-8")
    return path
