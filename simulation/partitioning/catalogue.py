"""Shards, or lists that silos have made of theirs -> the list of all their items, which all clients share.

The list is public among the clients. The aggregator needs its length alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from client_service.data import load_shard
from client_service.data.digests import list_content, list_digest
from client_service.data.files import current_file
from client_service.data.ids import read_id_list
from client_service.data.session_files import CLICKS, load_session_shard
from shared.errors import DataError
from shared.files import replace_file

CATALOGUE = "catalogue.txt"


def write_catalogue(shards: tuple[Path, ...], folder: Path) -> Path:
    """Write the ids of all items of all shards, sorted, one a line, and return the file."""
    path = folder / CATALOGUE
    folder.mkdir(parents=True, exist_ok=True)
    save_catalogue(merge_items(shards), path)
    return path


def merge_items(sources: Iterable[Path]) -> pl.Series:
    """Every id of these shards (folders) and lists (files, one id a line), once and sorted. DataError for a list that
    cannot be read, or where there is no id."""
    items = pl.concat([_items_of(path) for path in sources]).unique().sort()
    if items.is_empty():
        raise DataError("catalogue: expected ids of items, got none")
    return items


def save_catalogue(items: Sequence[str] | pl.Series, path: Path) -> str:
    """Write the list, whole or not at all; its sha256, by which two silos see whether theirs is the same."""
    try:
        replace_file(path, list_content(items))
    except OSError as error:
        raise DataError(f"{path}: expected a place for a file, got none ({error.strerror})") from None
    return list_digest(items)


def _items_of(path: Path) -> pl.Series:
    if path.is_dir():
        ids = load_session_shard(path).item_ids if current_file(path, CLICKS).exists() else load_shard(path).item_ids
        return pl.Series("item", ids, dtype=pl.String)
    return read_id_list(path, "item")
