"""Pairs as they were read, by split -> a Dataset: distinct pairs, disjoint splits, every clean-up counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from client_service.shard.content import SPLITS
from shared.errors import DataError
from simulation.split import split_by_user, split_validation


@dataclass(frozen=True, eq=False)
class Dataset:
    """Implicit feedback. Every user has a training item; a (user, item) pair occurs once.

    interactions: user, item, split (train, valid or test), all strings, sorted by user and item.
    titles: item, title, or None. notes: every clean-up and every drawn split, counted.
    """

    name: str
    interactions: pl.DataFrame
    titles: pl.DataFrame | None
    notes: tuple[str, ...] = ()


Part = TypeVar("Part")

WHOLE = "all"  # the key of pairs that came without a split


def assemble(name: str, pairs: Mapping[str, pl.DataFrame], *, seed: int, titles: pl.DataFrame | None = None) -> Dataset:
    """`pairs`: (user, item) tables by split, in order of precedence (train, valid, test), or one under `WHOLE`."""
    notes: list[str] = []
    table = pl.concat([part.select("user", "item", split=pl.lit(split)) for split, part in pairs.items()])
    table = _distinct(table, notes)
    if set(pairs) == {WHOLE}:
        table = _all_drawn(table, seed, notes)
    elif set(pairs) == {"train", "test"}:
        table = _validation_drawn(table, seed, notes)
    table = _trained(table, notes)
    named = None if titles is None else _named(titles, notes)
    return Dataset(name, table.sort("user", "item"), named, tuple(notes))


def _distinct(table: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Each pair once, in the first split that has it."""
    pairs = table.unique(["user", "item"], keep="first", maintain_order=True)
    if len(pairs) < len(table):
        within = len(table) - len(table.unique())
        _count(notes, within, "duplicate pairs dropped")
        _count(notes, len(table) - len(pairs) - within, "pairs in more than one split kept in the first only")
    return pairs


def _all_drawn(table: pl.DataFrame, seed: int, notes: list[str]) -> pl.DataFrame:
    notes.append(f"split drawn by user 8:1:1 with seed {seed}")
    return split_by_user(table, seed)


def _validation_drawn(table: pl.DataFrame, seed: int, notes: list[str]) -> pl.DataFrame:
    train = split_validation(table.filter(pl.col("split") == "train"), seed)
    notes.append(f"{int((train['split'] == 'valid').sum())} training pairs drawn for validation with seed {seed}")
    return pl.concat([train, table.filter(pl.col("split") == "test")])


def _trained(table: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Only users with a training item: nothing could be said to the others."""
    users = table.filter(pl.col("split") == "train")["user"].unique()
    kept = table.filter(pl.col("user").is_in(users.implode()))
    dropped = table["user"].n_unique() - len(users)
    _count(notes, dropped, f"users without a training item dropped, with their {len(table) - len(kept)} pairs")
    return kept


def _named(titles: pl.DataFrame, notes: list[str]) -> pl.DataFrame | None:
    """Each item once, with its first title; None where no item has one."""
    once = titles.unique("item", keep="first", maintain_order=True)
    _count(notes, len(titles) - len(once), "repeated items in the file of titles dropped")
    _count(notes, once["title"].null_count(), "items in the file of titles without a title")
    return once.sort("item") if once["title"].null_count() < len(once) else None


def _count(notes: list[str], count: int, what: str) -> None:
    if count:
        notes.append(f"{count} {what}")


def ordered_splits(found: Mapping[str, Part], where: Path) -> dict[str, Part]:
    """What was found for each split, train before valid before test; training data alone are a whole to be split.

    Raises DataError when there is no training data, or validation but no test data.
    """
    splits = [split for split in (WHOLE, *SPLITS) if split in found]
    if "train" not in splits and WHOLE not in splits:
        raise DataError(f"{where}: expected training data, got only {' and '.join(splits)}")
    if splits == ["train", "valid"]:
        raise DataError(f"{where}: expected test data beside train and valid, got none")
    return {WHOLE: found["train"]} if splits == ["train"] else {split: found[split] for split in splits}
