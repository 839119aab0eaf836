"""Reads and writes the files of a Shard.

No message of this module contains a user's or an item's id: errors end up in logs, and logs leave the silo.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.digests import list_digest
from client_service.data.events import clean_events, read_events, row_numbers
from client_service.data.files import commit_files, current_file, drop_staged, lock_folder, read_bytes, read_lines
from client_service.data.id_columns import match_ids
from client_service.data.interactions import Shard, build_shard, with_unmet_items
from client_service.data.shard_head import EVENTS, HEAD, MET_EVENTS, PAIRS, UNMET_ITEMS, ShardHead, read_shard_head
from client_service.data.tables import read_table
from shared.errors import DataError

INTERACTIONS, ITEMS = "interactions.parquet", "items.parquet"
UNMET = "unmet.parquet"  # items without interactions, if there are any
FEATURES = "features.npz"  # vectors of the items, if the silo has computed some


def shard_head(shard: Shard) -> ShardHead:
    """Builds the head of a shard, in the first format that has all its fields.

    Earlier versions read that.
    """
    return ShardHead(
        format=_choose_format(shard),
        name=shard.name,
        users=len(shard.user_ids),
        items=len(shard.item_ids),
        train=shard.train.nnz,
        valid=shard.valid.nnz,
        test=shard.test.nnz,
        digest=shard.digest,
        events_digest=shard.events_digest,
        met=None if shard.met_events is None else len(shard.met_events),
        met_digest=shard.met_digest,
        unmet=None if shard.unmet is None else len(shard.unmet),
        unmet_digest=shard.unmet_digest,
        rating=shard.rating,
        notes=shard.notes,
    )


def _choose_format(shard: Shard) -> Literal["lpsfed-shard/1", "lpsfed-shard/2", "lpsfed-shard/3", "lpsfed-shard/4"]:
    if shard.unmet is not None:
        return UNMET_ITEMS
    if shard.met_events is not None:
        return MET_EVENTS
    return PAIRS if shard.events_digest is None else EVENTS


def write_shard(
    folder: Path, name: str, interactions: pl.DataFrame, items: pl.DataFrame | None, notes: Sequence[str] = ()
) -> ShardHead:
    """Cleans interactions and writes them as a shard.

    `interactions`: user, item, split, and time and rating where known. `items`: the catalogue (item, title,
    features); without it the items that occur. Raises DataError.
    """
    events, counted = clean_events(read_events(interactions, folder / INTERACTIONS), folder / INTERACTIONS)
    return save_shard(folder, build_shard(name, events, items, (*notes, *counted), folder / ITEMS, exact=False))


def save_shard(folder: Path, shard: Shard) -> ShardHead:
    """Writes a shard into a folder in place of the old one.

    It is written whole or not at all.
    """
    head = shard_head(shard)
    text = json.dumps(head.model_dump(exclude_none=True), indent=2, ensure_ascii=False) + "\n"
    tables = {ITEMS: shard.items_with_ids(), INTERACTIONS: shard.all_events_with_ids().cast({"split": pl.String})}
    if shard.unmet is not None:
        tables[UNMET] = shard.unmet
    files = {name: _parquet(table) for name, table in tables.items()}
    commit_files(folder, {**files, HEAD: text.encode()})
    return head


def load_shard(folder: Path) -> Shard:
    """Loads the shard in a folder.

    With a head, sizes and digests must agree with it; without one it is derived, and the data are cleaned as by
    `write_shard`, so that a silo may bring its own interactions.parquet alone. Raises DataError naming the file, what
    was expected and what came.
    """
    path, head_path = current_file(folder, INTERACTIONS), current_file(folder, HEAD)
    head = read_shard_head(head_path) if head_path.exists() else None
    vectors = current_file(folder, FEATURES)
    vector_fields: dict[str, Any] = {}
    if vectors.exists():
        vector_fields = {"feature_file": vectors, "feature_digest": sha256(read_bytes(vectors)).hexdigest()}
    events, items_path = read_table(path), current_file(folder, ITEMS)
    items = read_table(items_path) if items_path.exists() else None
    if head is None:
        clean, counted = clean_events(read_events(events, path), path)
        derived = build_shard(folder.resolve().name, clean, items, counted, folder / ITEMS, exact=False)
        return replace(derived, **vector_fields)
    if head.format == PAIRS:  # other columns had no meaning in that format
        events = events.select(pl.col("^(user|item|split)$"))
        items = None if items is None else items.select(pl.col("^(item|title)$"))
    built = build_shard(head.name, read_events(events, path, exact=True), items, head.notes, folder / ITEMS)
    unmet_path = current_file(folder, UNMET)
    unmet = None if head.unmet is None else read_table(unmet_path)
    shard = replace(with_unmet_items(built, unmet, unmet_path), rating=head.rating, **vector_fields)
    _require_equal(head_path, head, shard)
    return shard


def with_places(shard: Shard, path: Path | None, size: int, *, partly: bool = False) -> Shard:
    """Returns the shard with its items' places in a catalogue of `size` items.

    Without a catalogue the shard stays as it is. The list is public among the clients; which of its items a silo has
    is not, and no message here states it. partly: an item may be missing from it, and then has the place -1. Raises
    DataError for a list of another length, with repeats, without any item of the shard, or, unless partly, without
    one that the shard has.
    """
    if path is None:
        return shard
    rows, digest = find_places(shard.shared_ids, path, size, partly=partly)
    return replace(shard, places=rows, catalogue=digest)


def read_catalogue(path: Path) -> pl.Series:
    """Reads the ids of a list file, one a line, unchanged.

    Raises DataError for one that cannot be read.
    """
    return pl.Series("item", read_lines(path), dtype=pl.String)


def find_places(
    item_ids: Sequence[str], path: Path, size: int, *, partly: bool = False
) -> tuple[NDArray[np.int64], str]:
    """Finds each item's row in the sorted list of a file, (N,).

    Returns the list's digest too. See `with_places`.
    """
    listed = read_catalogue(path)
    if len(listed) != size or listed.n_unique() != size:
        expected = f"{size} different item ids, as many as the method's setting `catalogue` says"
        raise DataError(f"{path}: expected {expected}, got {len(listed)}, {listed.n_unique()} of them different")
    ordered = listed.sort()
    rows = row_numbers(match_ids(pl.Series("item", item_ids, dtype=pl.String), ordered), ordered)
    if (rows < 0).all() or (not partly and (rows < 0).any()):
        expected = "expected some items of the shard" if partly else "expected every item of the shard"
        raise DataError(f"{path}: {expected}, {int((rows < 0).sum())} are not listed")
    return rows.astype(np.int64), list_digest(ordered)


@contextmanager
def lock_shard(folder: Path) -> Iterator[Shard]:
    """Loads the shard in a folder, and keeps other processes from changing it.

    Files of an interrupted change are removed. Raises DataError if the shard is refused, or if another process
    changes it.
    """
    with lock_folder(folder):
        drop_staged(folder)
        yield load_shard(folder)


def change_shard(folder: Path, change: Callable[[Shard], Shard]) -> tuple[Shard, Shard]:
    """Changes the shard in a folder, whole or not at all.

    Returns the old and the new. Raises DataError, and leaves the old shard, where one of both is refused or another
    process changes it too.
    """
    with lock_shard(folder) as before:
        after = change(before)
        save_shard(folder, after)
    return before, after


def _require_equal(path: Path, head: ShardHead, shard: Shard) -> None:
    """Checks the files against the head: sizes before digests, because they tell more.

    Raises DataError with the first difference.
    """
    derived = shard_head(shard)
    for field, expected in head.model_dump(exclude={"format", "name", "notes", "rating"}).items():
        if expected != (observed := getattr(derived, field)):
            raise DataError(f"{path}: expected {field} {expected} as the head says, the files have {observed}")
    if len(shard.events) != head.train + head.valid + head.test:
        raise DataError(f"{path}: expected each pair once, the files have {len(shard.events)} interactions")


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
