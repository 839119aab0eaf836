"""A folder of files <-> a Shard.

No message of this module contains a user's or an item's id: errors end up in logs, and logs travel.
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
UNMET = "unmet.parquet"  # items that nobody has met, if there are any
FEATURES = "features.npz"  # vectors of the items, if the silo has computed some


def shard_head(shard: Shard) -> ShardHead:
    """The head of this content, in the first format that has a place for it: earlier versions read that."""
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
    """Clean `interactions` (user, item, split, and time and rating where known) and write them as a shard.

    `items` is the catalogue (item, title, features); without it the items that occur. Raises DataError.
    """
    events, counted = clean_events(read_events(interactions, folder / INTERACTIONS), folder / INTERACTIONS)
    return save_shard(folder, build_shard(name, events, items, (*notes, *counted), folder / ITEMS, exact=False))


def save_shard(folder: Path, shard: Shard) -> ShardHead:
    """Put the shard into the folder, in the place of the one that is there: whole or not at all."""
    head = shard_head(shard)
    text = json.dumps(head.model_dump(exclude_none=True), indent=2, ensure_ascii=False) + "\n"
    tables = {ITEMS: shard.items_with_ids(), INTERACTIONS: shard.all_events_with_ids().cast({"split": pl.String})}
    if shard.unmet is not None:
        tables[UNMET] = shard.unmet
    files = {name: _parquet(table) for name, table in tables.items()}
    commit_files(folder, {**files, HEAD: text.encode()})
    return head


def load_shard(folder: Path) -> Shard:
    """The shard in `folder`. With a head, sizes and digests must agree with it; without one it is derived, and the
    data are cleaned as by `write_shard`, so that a silo may bring nothing but its own interactions.parquet.

    Raises DataError naming the file, what was expected and what came.
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
    if head.format == PAIRS:  # whatever else the files hold had no meaning in that format
        events = events.select(pl.col("^(user|item|split)$"))
        items = None if items is None else items.select(pl.col("^(item|title)$"))
    built = build_shard(head.name, read_events(events, path, exact=True), items, head.notes, folder / ITEMS)
    unmet_path = current_file(folder, UNMET)
    unmet = None if head.unmet is None else read_table(unmet_path)
    shard = replace(with_unmet_items(built, unmet, unmet_path), rating=head.rating, **vector_fields)
    _require_equal(head_path, head, shard)
    return shard


def with_places(shard: Shard, path: Path | None, size: int, *, partly: bool = False) -> Shard:
    """The shard with its items' places in the catalogue of `size` items; as it is where there is no catalogue.

    The list is public among the clients; which of its items a silo has is not, and no message here says so. partly: an
    item may be missing from it, and then has the place -1. Raises DataError for a list of another length, with repeats,
    without any item of the shard, or, unless partly, without one that the shard has.
    """
    if path is None:
        return shard
    rows, digest = find_places(shard.shared_ids, path, size, partly=partly)
    return replace(shard, places=rows, catalogue=digest)


def read_catalogue(path: Path) -> pl.Series:
    """The ids that a file has, one a line, as they stand there. DataError for one that cannot be read."""
    return pl.Series("item", read_lines(path), dtype=pl.String)


def find_places(
    item_ids: Sequence[str], path: Path, size: int, *, partly: bool = False
) -> tuple[NDArray[np.int64], str]:
    """The row of each item in the sorted list at `path`, (N,), and the list's digest: see `with_places`."""
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
    """The shard in `folder`, which nobody else changes meanwhile, without what an earlier change has left that was cut
    off. DataError where it is refused, or where another process changes it."""
    with lock_folder(folder):
        drop_staged(folder)
        yield load_shard(folder)


def change_shard(folder: Path, change: Callable[[Shard], Shard]) -> tuple[Shard, Shard]:
    """Replace the shard in `folder` by what `change` makes of it, whole or not at all; returns the old and the new.

    Raises DataError, and leaves the old shard, where one of both is refused or another process changes it too.
    """
    with lock_shard(folder) as before:
        after = change(before)
        save_shard(folder, after)
    return before, after


def _require_equal(path: Path, head: ShardHead, shard: Shard) -> None:
    """Sizes before digests: they say more about what went wrong."""
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
