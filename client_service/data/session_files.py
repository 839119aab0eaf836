"""Reads and writes the files of a SessionShard.

No message of this module contains an item's id.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field, ValidationError

from client_service.data.events import id_column, row_numbers
from client_service.data.files import commit_files, current_file
from client_service.data.interactions import build_catalogue
from client_service.data.sessions import SPLITS, SessionShard
from client_service.data.shard_head import read_head_fields
from client_service.data.tables import read_table
from shared.errors import DataError
from shared.message import Message

CLICKS, ITEMS, HEAD = "sessions.parquet", "items.parquet", "shard.json"
FORMAT: Literal["lpsfed-sessions/1"] = "lpsfed-sessions/1"


class SessionShardHead(Message):
    """Head of a shard of sessions: sizes, and the digest of its content."""

    format: Literal["lpsfed-sessions/1"] = FORMAT
    name: str = Field(min_length=1, max_length=200)
    sessions: int = Field(ge=1)
    clicks: int = Field(ge=2)
    items: int = Field(ge=1)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    notes: tuple[str, ...] = ()


def describe_session_head(shard: SessionShard) -> SessionShardHead:
    """Builds the head of a shard whose items have their own rows as places."""
    sizes = {"sessions": len(shard.splits), "clicks": len(shard.clicks), "items": len(shard.item_ids)}
    return SessionShardHead(name=shard.name, digest=shard.digest, notes=shard.notes, **sizes)


def save_session_shard(folder: Path, shard: SessionShard) -> SessionShardHead:
    """Writes a shard into a folder, whole or not at all.

    Places in a catalogue are not saved: the catalogue gives them again.
    """
    own = shard.with_places(np.arange(len(shard.item_ids)), "")
    head = describe_session_head(own)
    owners = np.repeat(np.arange(len(own.splits)), np.diff(own.starts))
    clicks = pl.DataFrame(
        {
            "session": owners,
            "item": pl.Series(own.item_ids, dtype=pl.String).gather(own.clicks),
            "split": pl.Series(SPLITS, dtype=pl.String).gather(own.splits[owners]),
        }
    )
    titles = own.titles or (None,) * len(own.item_ids)
    items = pl.DataFrame({"item": own.item_ids, "title": titles}, schema={"item": pl.String, "title": pl.String})
    text = head.model_dump_json(indent=2) + "\n"
    commit_files(folder, {CLICKS: _parquet(clicks), ITEMS: _parquet(items), HEAD: text.encode()})
    return head


def load_session_shard(folder: Path) -> SessionShard:
    """Loads the shard in a folder.

    sessions.parquet has the columns session, item and split, clicks in their order. With a head, sizes and digest
    must agree with it. items.parquet (item, title) is the catalogue; without it the items that occur. Raises
    DataError naming the file, what was expected and what came.
    """
    path, head_path = current_file(folder, CLICKS), current_file(folder, HEAD)
    head = _read_head(head_path) if head_path.exists() else None
    items_path = current_file(folder, ITEMS)
    items = read_table(items_path) if items_path.exists() else None
    name = folder.resolve().name if head is None else head.name
    notes = () if head is None else head.notes
    shard = build_session_shard(name, read_table(path), items, notes, path, exact=head is not None)
    if head is not None:
        _require_equal(head_path, head, describe_session_head(shard))
    return shard


def build_session_shard(
    name: str,
    table: pl.DataFrame,
    items: pl.DataFrame | None,
    notes: tuple[str, ...],
    path: Path,
    *,
    exact: bool = False,
) -> SessionShard:
    """Builds a shard from rows (session, item, split) in the order of clicks.

    exact: ids stay as they are. Raises DataError if the rows form no shard.
    """
    ids, splits = id_column(table, "item", path, exact=exact), _split_column(table, path)
    catalogue, _ = build_catalogue(pl.DataFrame({"item": ids}), items, path.with_name(ITEMS), exact=exact)
    clicks = row_numbers(ids, catalogue["item"])
    if missing := int((clicks < 0).sum()):
        raise DataError(f"{path}: expected every item in {ITEMS}, {missing} clicks are on others")
    starts = _find_session_starts(table, splits, path)
    if not np.any((splits[starts[:-1]] == 0) & (np.diff(starts) > 1)):
        raise DataError(f"{path}: expected a training session of two or more clicks, there is none")
    titles = catalogue["title"].to_list() if catalogue["title"].null_count() < len(catalogue) else None
    found = tuple(catalogue["item"])
    places = np.arange(len(found))
    return SessionShard(name, found, clicks, starts, splits[starts[:-1]], places, titles and tuple(titles), notes=notes)


def _split_column(table: pl.DataFrame, path: Path) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    words = id_column(table, "split", path)
    codes = row_numbers(words, pl.Series(sorted(SPLITS), dtype=pl.String))
    if wrong := int((codes < 0).sum()):
        raise DataError(f"{path}: expected train, valid or test in column 'split', got others in {wrong} rows")
    order = np.array([SPLITS.index(word) for word in sorted(SPLITS)], dtype=np.int8)
    found: np.ndarray[tuple[int], np.dtype[np.int8]] = order[codes]
    return found


def _find_session_starts(
    table: pl.DataFrame, splits: np.ndarray[tuple[int], np.dtype[np.int8]], path: Path
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Finds the start of each session, and the end of the last.

    Raises DataError if a session is in several parts, or in two splits.
    """
    owners = id_column(table, "session", path)
    changed = (owners != owners.shift(1)).fill_null(True).to_numpy()
    starts = np.append(np.flatnonzero(changed), len(owners))
    if (again := len(starts) - 1 - owners.n_unique()) > 0:
        raise DataError(f"{path}: expected the clicks of a session one after the other, {again} sessions are in parts")
    if np.any((splits[1:] != splits[:-1]) & ~changed[1:]):
        raise DataError(f"{path}: expected one split for all clicks of a session, got several")
    return starts


def _read_head(path: Path) -> SessionShardHead:
    values = read_head_fields(path, (FORMAT,), "sessions")
    try:
        return SessionShardHead.model_validate(values)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise DataError(f"{path}: expected the head of a shard of sessions, {fields}") from None


def _require_equal(path: Path, head: SessionShardHead, derived: SessionShardHead) -> None:
    for field, expected in json.loads(head.model_dump_json(exclude={"name", "notes"})).items():
        if expected != (observed := getattr(derived, field)):
            raise DataError(f"{path}: expected {field} {expected} as the head says, the files have {observed}")


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
