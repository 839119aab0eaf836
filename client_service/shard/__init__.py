"""A folder of interaction files -> a Shard: one silo's users, items and 0/1 matrices; and the way back.

No message of this module contains a user's or an item's id: errors end up in logs, and logs travel.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy import sparse

from client_service.shard.content import cleaned, content_digest, id_column, matrix, row_numbers
from client_service.shard.files import read_bytes, read_table, replace_file
from shared.errors import DataError

FORMAT: Literal["lpsfed-shard/1"] = "lpsfed-shard/1"
INTERACTIONS, ITEMS, HEAD = "interactions.parquet", "items.parquet", "shard.json"


class ShardHead(BaseModel):
    """What a shard says about itself: sizes, digest of its content, and the clean-ups it went through."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["lpsfed-shard/1"] = FORMAT
    name: str = Field(min_length=1, max_length=200)
    users: int = Field(ge=1)
    items: int = Field(ge=1)
    train: int = Field(ge=1)
    valid: int = Field(ge=0)
    test: int = Field(ge=0)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Shard:
    """One silo's data. M users with at least one training item, N items of its catalogue, ids sorted.

    train, valid, test: (M, N), 0/1, float64, sorted indices, disjoint. titles: (N,), None where unknown. places: (N,),
    each item's row in a catalogue that the whole federation shares, None where there is no such catalogue.
    """

    name: str
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    titles: tuple[str | None, ...] | None
    train: sparse.csr_array
    valid: sparse.csr_array
    test: sparse.csr_array
    digest: str
    notes: tuple[str, ...] = ()
    places: NDArray[np.int64] | None = None

    def user_row(self, user_id: str) -> int | None:
        """The user's row in the matrices, or None for somebody who is not in the shard."""
        return self._user_rows.get(user_id)

    def item_row(self, item_id: str) -> int | None:
        """The item's column in the matrices, or None for an item outside the catalogue."""
        return self._item_rows.get(item_id)

    @property
    def head(self) -> ShardHead:
        """The head this content has, whether or not the folder brought one."""
        return ShardHead(
            name=self.name,
            users=len(self.user_ids),
            items=len(self.item_ids),
            train=self.train.nnz,
            valid=self.valid.nnz,
            test=self.test.nnz,
            digest=self.digest,
            notes=self.notes,
        )

    @cached_property
    def _user_rows(self) -> dict[str, int]:
        return {user_id: row for row, user_id in enumerate(self.user_ids)}

    @cached_property
    def _item_rows(self) -> dict[str, int]:
        return {item_id: row for row, item_id in enumerate(self.item_ids)}


def write_shard(
    folder: Path, name: str, interactions: pl.DataFrame, items: pl.DataFrame | None, notes: Sequence[str] = ()
) -> ShardHead:
    """Write `interactions` (user, item, split) and the catalogue `items` (item, title) as a shard.

    Users without a training item, repeated pairs and pairs of a later split that an earlier one has are dropped and
    counted in the notes. Without `items` the catalogue is the items that occur. Raises DataError.

    Each file appears whole or not at all. The interactions come last: a folder that a crash left half-written lacks
    them or disagrees with its head, and is refused by `read_shard`.
    """
    shard = _shard(folder, name, interactions, items, notes)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / ITEMS, _parquet(_item_table(shard)))
    replace_file(folder / HEAD, (json.dumps(shard.head.model_dump(), indent=2, ensure_ascii=False) + "\n").encode())
    replace_file(folder / INTERACTIONS, _parquet(_interaction_table(shard)))
    return shard.head


def read_shard(folder: Path) -> Shard:
    """The shard in `folder`. With a head, counts and digest must agree with it; without one it is derived, and the
    data are cleaned as by `write_shard`, so that a silo may bring nothing but its own interactions.parquet.

    Raises DataError naming the file, what was expected and what came.
    """
    head = _read_head(folder / HEAD) if (folder / HEAD).exists() else None
    items = read_table(folder / ITEMS) if (folder / ITEMS).exists() else None
    name = head.name if head else folder.resolve().name
    shard = _shard(folder, name, read_table(folder / INTERACTIONS), items, head.notes if head else ())
    if head is not None:
        _compare(folder / HEAD, head, shard.head)
    return shard


def _shard(
    folder: Path, name: str, interactions: pl.DataFrame, items: pl.DataFrame | None, notes: Sequence[str]
) -> Shard:
    pairs, counted = cleaned(interactions, folder / INTERACTIONS)
    catalogue = _catalogue(pairs, items, folder / ITEMS)
    user_ids = pairs["user"].unique().sort()
    rows, columns = row_numbers(pairs["user"], user_ids), row_numbers(pairs["item"], catalogue["item"])
    if (columns < 0).any():
        missing = int((columns < 0).sum())
        raise DataError(f"{folder / ITEMS}: expected every item of {INTERACTIONS}, {missing} interactions have others")
    shape = (len(user_ids), len(catalogue))
    masks = {split: (pairs["split"] == split).to_numpy() for split in ("train", "valid", "test")}
    matrices = {split: matrix(rows[mask], columns[mask], shape) for split, mask in masks.items()}
    titles = catalogue["title"].to_list() if catalogue["title"].null_count() < len(catalogue) else None
    ids = (user_ids.to_list(), catalogue["item"].to_list(), titles)
    digest = content_digest(ids, tuple(matrices.values()))
    named = None if titles is None else tuple(titles)
    train, valid, test = matrices.values()
    return Shard(name, tuple(ids[0]), tuple(ids[1]), named, train, valid, test, digest, (*notes, *counted))


def _catalogue(pairs: pl.DataFrame, items: pl.DataFrame | None, path: Path) -> pl.DataFrame:
    """All items of the silo (item, title), sorted."""
    if items is None:
        listed = pairs.select(pl.col("item").unique().sort())
        return listed.with_columns(title=pl.lit(None, dtype=pl.String))
    column = id_column(items, "item", path)
    if column.n_unique() < len(column):
        raise DataError(f"{path}: expected each item once, {len(column) - column.n_unique()} rows repeat another")
    titles = items["title"] if "title" in items.columns else pl.Series([None] * len(items), dtype=pl.String)
    if titles.dtype not in (pl.String, pl.Null):
        raise DataError(f"{path}: expected strings in column 'title', got {titles.dtype}")
    return pl.DataFrame({"item": column, "title": titles.cast(pl.String)}).sort("item")


def _read_head(path: Path) -> ShardHead:
    try:
        values = json.loads(read_bytes(path))
    except ValueError:
        raise DataError(f"{path}: expected JSON, got something else") from None
    found = values.get("format") if isinstance(values, dict) else type(values).__name__
    if found != FORMAT:
        raise DataError(f"{path}: expected format {FORMAT!r}, got {str(found)[:40]!r}")
    try:
        return ShardHead.model_validate(values)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{path}: {fields}") from None


def _compare(path: Path, expected: ShardHead, observed: ShardHead) -> None:
    """Sizes before the digest: they say more about what went wrong."""
    for field in ("users", "items", "train", "valid", "test", "digest"):
        said, found = getattr(expected, field), getattr(observed, field)
        if said != found:
            raise DataError(f"{path}: expected {field} {said} as the head says, the files have {found}")


def _item_table(shard: Shard) -> pl.DataFrame:
    titles = shard.titles or (None,) * len(shard.item_ids)
    return pl.DataFrame({"item": shard.item_ids, "title": titles}, schema={"item": pl.String, "title": pl.String})


def _interaction_table(shard: Shard) -> pl.DataFrame:
    users, items = pl.Series(shard.user_ids, dtype=pl.String), pl.Series(shard.item_ids, dtype=pl.String)
    tables = []
    for split in ("train", "valid", "test"):
        pairs: sparse.csr_array = getattr(shard, split)
        rows = np.repeat(np.arange(len(users)), np.diff(pairs.indptr))
        tables.append(pl.DataFrame({"user": users.gather(rows), "item": items.gather(pairs.indices), "split": split}))
    columns = ("user", "item", "split")
    return pl.concat([table.select(pl.col(columns).cast(pl.String)) for table in tables])


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
