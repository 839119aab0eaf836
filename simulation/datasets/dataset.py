"""Data set: clean pairs with a train, validation and test split.

Every change of the data is counted in the notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from client_service.data.events import MET, SPLIT_TYPE, SPLITS, clean_events, drop_empty_columns, sort_pairs
from client_service.data.ratings import RatingScale
from shared.errors import DataError
from shared.words import count_noun, counted_lines
from simulation.datasets.splits import Draws, SplitKind, describe_split, require_times, split_by_user, split_validation


@dataclass(frozen=True, eq=False)
class Dataset:
    """Implicit feedback: each user has a training item, each pair occurs once.

    events: user and item (strings), split (train, valid or test), and where they are known time (seconds since 1970
    UTC) and rating; sorted by user and item. met: the same columns without a split: known interactions that are not
    positive, or None: they are not learnt from, and their users and items need not occur in events. titles: item, title
    and the items' attributes (String or Float64), or None. notes: every clean-up and every drawn split, counted.
    meaning: of the ratings, None without any.
    """

    name: str
    events: pl.DataFrame
    titles: pl.DataFrame | None
    notes: tuple[str, ...] = ()
    met: pl.DataFrame | None = None
    meaning: RatingScale | None = None

    def all_events(self) -> pl.DataFrame:
        """Returns positive interactions, and other known ones with the split `met`."""
        return join_met(self.events, self.met)


def join_met(events: pl.DataFrame, met: pl.DataFrame | None) -> pl.DataFrame:
    """Joins positive interactions with other known ones under the split `met`."""
    if met is None:
        return events
    return pl.concat([events, met.with_columns(split=pl.lit(MET, dtype=SPLIT_TYPE))], how="diagonal")


Value = TypeVar("Value")

WHOLE = "all"  # the key of events that came without a split


def assemble_dataset(
    name: str,
    tables: Mapping[str, pl.DataFrame],
    *,
    seed: int,
    titles: pl.DataFrame | None = None,
    path: Path | None = None,
    split: SplitKind = "random",
    draws: Draws = "pair",
) -> Dataset:
    """Builds a data set from events that were read.

    tables: events (user, item; time and rating) by split, or all of them under `WHOLE`, which `split` divides; and
    under `MET` those that are not positive. seed: of the splits that did not come with the data, drawn as `draws` says.
    path: named in errors.

    Raises DataError without a training event, or without times for a split by time.
    """
    named = {"train" if name == WHOLE else name: table for name, table in tables.items()}
    parts = [part.with_columns(split=pl.lit(name, dtype=SPLIT_TYPE)) for name, part in named.items()]
    cleaned, notes = clean_events(pl.concat(parts, how="diagonal"), path or name)
    events, met = cleaned.filter(pl.col("split") != MET), cleaned.filter(pl.col("split") == MET).drop("split")
    splits = set(tables) - {MET}
    if splits == {WHOLE}:
        require_times(events, split, path or name)
        events = split_by_user(events, seed, split, draws)  # sorted
        notes.extend(describe_split(events, seed, split))
        if split == "global-time":  # who came after the training data ended has nothing to be known by
            cleaned, dropped = clean_events(events, path or name)
            events, late = cleaned.filter(pl.col("split") != MET), cleaned.filter(pl.col("split") == MET).drop("split")
            met = pl.concat([met, late], how="diagonal")
            notes.extend(dropped)
    else:
        drawn = _draw_validation(events, seed, draws, notes) if splits == {"train", "test"} else events
        events = sort_pairs(drawn)
    first_titles = None if titles is None else _first_titles(titles, notes)
    known = None if met.is_empty() else sort_pairs(drop_empty_columns(met))
    return Dataset(name, drop_empty_columns(events), first_titles, tuple(notes), known)


def _draw_validation(events: pl.DataFrame, seed: int, draws: Draws, notes: list[str]) -> pl.DataFrame:
    train = split_validation(events.filter(pl.col("split") == "train"), seed, draws)
    drawn = count_noun(int((train["split"] == "valid").sum()), "training pair")
    notes.append(f"{drawn} drawn for validation with seed {seed}")
    return pl.concat([train, events.filter(pl.col("split") == "test")])


def describe_unmet(dataset: Dataset) -> pl.DataFrame | None:
    """Lists the described items without any interaction; None if no item is described."""
    if dataset.titles is None:
        return None
    events = [one.select("item") for one in (dataset.events, dataset.met) if one is not None]
    return dataset.titles.join(pl.concat(events), on="item", how="anti")


def _first_titles(titles: pl.DataFrame, notes: list[str]) -> pl.DataFrame | None:
    """Keeps the first title and attributes of each item; None if no item has any."""
    once = titles.unique("item", keep="first", maintain_order=True)
    counted = [
        (len(titles) - len(once), "repeated item", "in the file of titles dropped"),
        (once["title"].null_count(), "item", "in the file of titles without a title"),
    ]
    notes.extend(counted_lines(counted))
    return once.sort("item") if once.width > 2 or once["title"].null_count() < len(once) else None


def ordered_splits(values: Mapping[str, Value], where: Path) -> dict[str, Value]:
    """Orders values by split: train, validation, test.

    Training data alone are a whole to be split. Items under `MET` stay beside them. Raises DataError without training
    data, or for validation without test data.
    """
    splits = [split for split in (WHOLE, *SPLITS) if split in values]
    if "train" not in splits and WHOLE not in splits:
        raise DataError(f"{where}: expected training data, got only {' and '.join(splits)}")
    if splits == ["train", "valid"]:
        raise DataError(f"{where}: expected test data beside train and valid, got none")
    found = {WHOLE: values["train"]} if splits == ["train"] else {split: values[split] for split in splits}
    return found | {MET: values[MET]} if MET in values else found
