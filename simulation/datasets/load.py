"""A path -> a Dataset: finds the files, reads each in its format, cleans, and draws the splits that did not come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from client_service.shard.events import MET
from shared.errors import DataError, SettingsError
from simulation.datasets.content import format_extension
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset, ordered_splits
from simulation.datasets.formats import FORMATS, TITLES
from simulation.datasets.likings import LeastRating, choose_likings
from simulation.datasets.locate import locate_files, require_format
from simulation.datasets.tables import Table
from simulation.split import Draws, SplitKind


def load_dataset(
    path: Path,
    seed: int,
    min_rating: LeastRating = None,
    split: SplitKind | None = None,
    draws: Draws = "pair",
) -> Dataset:
    """The data set at `path`, a file or a folder. A split that comes with it is kept; `seed` draws what is missing, as
    `draws` says, or `split` says how it is made: then none may have come (SettingsError).
    Interactions with a rating below `min_rating` are met, not liked; None: each counts as a liking; a note says which.

    Raises DataError naming the file, the line where there is one, what was expected and what came; never an id.
    """
    files = locate_files(path)
    read = {name: _read_table(file) for name, file in files.interactions.items()}
    tables = {name: table.event_table() for name, table in read.items()}
    if WHOLE in tables and "split" in tables[WHOLE].columns:
        parts = tables[WHOLE].partition_by("split", as_dict=True, maintain_order=True)
        tables = ordered_splits({str(split): part for (split,), part in parts.items()}, path)
    if split is not None and tables.keys() - {MET} != {WHOLE}:
        raise SettingsError(f"--split: expected none for data that bring their own split, got {split} for {path}")
    titles = None if files.titles is None else read_titles(files.titles)
    chosen, notes = choose_likings(tables, min_rating, path)
    dataset = assemble_dataset(
        files.name, chosen, seed=seed, titles=titles, path=path, split=split or "random", draws=draws
    )
    times = dict.fromkeys(note for table in read.values() for note in table.time_notes())
    return replace(dataset, notes=(*times, *notes, *dataset.notes))


def read_events(path: Path) -> pl.DataFrame:
    """(user, item) of one file, and split, time and rating where it has them. Raises DataError."""
    return _read_table(path).event_table()


def read_clicks(path: Path) -> pl.DataFrame:
    """(session, item, time) of one file. Raises DataError."""
    return _read_table(path).click_table()


def _read_table(path: Path) -> Table:
    return FORMATS[require_format(path)].read(path)


def read_titles(path: Path) -> pl.DataFrame:
    """(item, title) of one file, with null where there is no title. Raises DataError."""
    name = path.name.removesuffix(".gz")
    if (read := TITLES.get(name) or TITLES.get(format_extension(path))) is None:
        raise DataError(
            f"{path}: expected a file of titles ({', '.join(TITLES)}), got the extension {format_extension(path)!r}"
        )
    return read(path).title_table()
