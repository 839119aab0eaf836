"""A path -> a Dataset: finds the files, reads each in its format, cleans, and draws the splits that did not come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from client_service.data.events import MET
from shared.errors import DataError, SettingsError
from simulation.datasets.columns import AS_NAMED, FileOptions
from simulation.datasets.content import format_extension
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset, ordered_splits
from simulation.datasets.formats import FORMATS, TITLES
from simulation.datasets.likings import LeastRating, choose_likings
from simulation.datasets.locate import locate_files, require_format
from simulation.datasets.tables import Table
from simulation.progress import step
from simulation.split import Draws, SplitKind


class Events(NamedTuple):
    """table: user and item, and split, time, rating and likes where the file has them. rated_by: the field that the
    ratings come from."""

    table: pl.DataFrame
    notes: list[str]
    rated_by: str


@step("reading the data")
def load_dataset(
    path: Path,
    seed: int,
    min_rating: LeastRating = None,
    split: SplitKind | None = None,
    draws: Draws = "pair",
    file_options: FileOptions = AS_NAMED,
) -> Dataset:
    """The data set at `path`, a file or a folder. A split that comes with it is kept; `seed` draws what is missing, as
    `draws` says, or `split` says how it is made: then none may have come (SettingsError).
    Interactions with a rating below `min_rating` are met, not liked; None: each counts as a liking; a note says which.
    file_options: which columns hold what.

    Raises DataError naming the file, the line where there is one, what was expected and what came; never an id.
    """
    files = locate_files(path)
    read = {name: _read_table(file, file_options) for name, file in files.interactions.items()}
    found = {name: table.event_table() for name, table in read.items()}
    tables = {name: table for name, (table, _) in found.items()}
    if WHOLE in tables and "split" in tables[WHOLE].columns:
        parts = tables[WHOLE].partition_by("split", as_dict=True, maintain_order=True)
        tables = ordered_splits({str(split): part for (split,), part in parts.items()}, path)
    if split is not None and tables.keys() - {MET} != {WHOLE}:
        raise SettingsError(f"--split: expected none for data that bring their own split, got {split} for {path}")
    titles = None if files.titles is None else read_titles(files.titles)
    column = next(iter(read.values())).rated_by
    chosen, notes, meaning = choose_likings(tables, min_rating, path, column=column)
    dataset = assemble_dataset(
        files.name, chosen, seed=seed, titles=titles, path=path, split=split or "random", draws=draws
    )
    told = dict.fromkeys(note for _, noted in found.values() for note in noted)
    return replace(dataset, notes=(*told, *notes, *dataset.notes), meaning=meaning)


@step("reading the interactions")
def read_events(path: Path, file_options: FileOptions = AS_NAMED) -> Events:
    """The interactions of one file. Raises DataError."""
    table = _read_table(path, file_options)
    return Events(*table.event_table(), table.rated_by)


def read_clicks(path: Path, file_options: FileOptions = AS_NAMED) -> tuple[pl.DataFrame, list[str]]:
    """(session, item, time in microseconds) of one file, and notes. Raises DataError."""
    return _read_table(path, file_options).click_table()


def _read_table(path: Path, file_options: FileOptions) -> Table:
    return FORMATS[require_format(path)].read(path, file_options)


def read_titles(path: Path) -> pl.DataFrame:
    """(item, title) of one file, with null where there is no title. Raises DataError."""
    name = path.name.removesuffix(".gz")
    if (read := TITLES.get(name) or TITLES.get(format_extension(path))) is None:
        raise DataError(
            f"{path}: expected a file of titles ({', '.join(TITLES)}), got the extension {format_extension(path)!r}"
        )
    return read(path, AS_NAMED).title_table()
