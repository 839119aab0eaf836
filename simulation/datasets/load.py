"""Loads a data set from a path: finds its files, reads, cleans and splits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import polars as pl

from client_service.data.events import MET
from client_service.data.files import read_lines
from shared.errors import DataError, SettingsError
from simulation.datasets.columns import DEFAULT_OPTIONS, ITEM_OPTIONS, FileOptions
from simulation.datasets.content import file_stem, format_extension, line_error
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset, ordered_splits
from simulation.datasets.formats import FORMATS, READ, TITLES
from simulation.datasets.ratings import LeastRating, choose_positives
from simulation.datasets.splits import Draws, SplitKind
from simulation.datasets.tables import Table
from simulation.progress import step

SPLIT_NAMES = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
NUMBERS_OF_ITEMS = "item_map.txt"
OTHER_FILES = ("items", "movies", "users", "user", "item", "links", "tags", "readme", "license", "licence")


@dataclass(frozen=True)
class Files:
    """Files of one data set.

    interactions: file of each split (or `WHOLE`), in order of precedence. titles: file of titles, if there is one.
    numbers: file that maps the ids of the titles to the item numbers of the interactions.
    """

    name: str
    interactions: Mapping[str, Path]
    titles: Path | None
    numbers: Path | None = None


def locate_files(path: Path) -> Files:
    """Finds the files at `path`.

    It is one file, which is split, or a folder with one file or with train and test files. Raises DataError for a
    missing path, an unknown format, and a folder with no or several candidates.
    """
    if not path.exists():
        raise DataError(f"{path}: expected a file or a folder, got nothing there")
    if path.is_dir():
        files = _require_one(path, _candidate_files(_list_files(path)))
        return Files(path.resolve().name, files, *_title_files(path, next(iter(files.values()))))
    require_format(path)
    return Files(file_stem(path), {WHOLE: path}, *_title_files(path.parent, path))


def require_format(path: Path) -> str:
    """Returns the extension of a file's format; raises DataError for an unknown one."""
    if format_extension(path) not in FORMATS:
        raise DataError(f"{path}: expected {READ}, got the extension {format_extension(path)!r}")
    return format_extension(path)


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise DataError(f"{folder}: expected a readable folder, got {error.strerror}") from None


def _require_one(folder: Path, candidates: list[dict[str, Path]]) -> dict[str, Path]:
    if not candidates:
        raise DataError(f"{folder}: expected one of {READ}, got no such file")
    if len(candidates) > 1:
        names = "; ".join(", ".join(file.name for file in files.values()) for files in candidates)
        raise DataError(f"{folder}: expected one data set, got {len(candidates)}: {names}")
    return ordered_splits(candidates[0], folder)


def _candidate_files(files: list[Path]) -> list[dict[str, Path]]:
    """Lists groups of split files and well-known single files.

    Without any, every file that could be the data is listed.
    """
    groups: dict[tuple[str, str], dict[str, Path]] = {}
    known, others = [], []
    for file in (file for file in files if format_extension(file) in FORMATS):
        prefix, _, last = file_stem(file).rpartition(".")
        if last in SPLIT_NAMES:
            _add_split(groups.setdefault((prefix, format_extension(file)), {}), SPLIT_NAMES[last], file)
        elif any(fnmatch(file_stem(file), known_stem) for known_stem in FORMATS[format_extension(file)].stems):
            known.append({WHOLE: file})
        elif file_stem(file).lower() not in OTHER_FILES:
            others.append({WHOLE: file})
    return [*groups.values(), *known] or others


def _add_split(group: dict[str, Path], split: str, file: Path) -> None:
    if split in group:
        raise DataError(f"{file.parent}: expected one {split} file, got {group[split].name} and {file.name}")
    group[split] = file


def _title_files(folder: Path, interactions: Path) -> tuple[Path | None, Path | None]:
    """Finds the file of titles, and the file that numbers its items.

    The second is None if the titles use the item ids of the interactions; both are None if no file is found.
    """
    prefix, _, last = file_stem(interactions).rpartition(".")
    own = prefix if last in SPLIT_NAMES else file_stem(interactions)
    kind = FORMATS[format_extension(interactions)]
    files = _find_files(folder, [name.format(stem=own) for name in kind.titles])
    numbers = _find_files(folder, [NUMBERS_OF_ITEMS]) if kind.numbered_titles and not files else []
    if numbers:
        files = _find_files(folder, kind.numbered_titles)
    if len(files) > 1 or len(numbers) > 1:
        found = files if len(files) > 1 else numbers
        raise DataError(f"{folder}: expected one file of titles, got {', '.join(file.name for file in found)}")
    return (files[0], numbers[0] if numbers else None) if files else (None, None)


def _find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    return [path for name in names for end in ("", ".gz") if (path := folder / f"{name}{end}").is_file()]


class Events(NamedTuple):
    """Interactions of one file.

    table: user and item, and split, time, rating and positive where the file has them. rating_field: field of the
    ratings.
    """

    table: pl.DataFrame
    notes: list[str]
    rating_field: str


@step("reading the data")
def load_dataset(
    path: Path,
    seed: int,
    min_rating: LeastRating = None,
    split: SplitKind | None = None,
    draws: Draws = "pair",
    file_options: FileOptions = DEFAULT_OPTIONS,
) -> Dataset:
    """Loads the data set at `path`, a file or a folder.

    A split that comes with it is kept; otherwise `seed` and `draws` draw it, or `split` says how it is made. `split`
    with data that have a split raises SettingsError. Interactions with a rating below `min_rating` are known but not
    positive; None: each is positive; a note says which. file_options: which columns hold which field.

    Raises DataError with the file, the line where there is one, what was expected and what came; never an id.
    """
    files = locate_files(path)
    read = {name: _read_table(file, file_options) for name, file in files.interactions.items()}
    found = {name: table.read_events() for name, table in read.items()}
    tables = {name: table for name, (table, _) in found.items()}
    if WHOLE in tables and "split" in tables[WHOLE].columns:
        parts = tables[WHOLE].partition_by("split", as_dict=True, maintain_order=True)
        tables = ordered_splits({str(split): part for (split,), part in parts.items()}, path)
    if split is not None and tables.keys() - {MET} != {WHOLE}:
        raise SettingsError(f"--split: expected none for data that bring their own split, got {split} for {path}")
    titles = None if files.titles is None else read_titles(files.titles)
    if titles is not None and files.numbers is not None:
        titles = _number_items(titles, files.numbers)
    column = next(iter(read.values())).rating_field
    chosen, notes, meaning = choose_positives(tables, min_rating, path, column=column)
    dataset = assemble_dataset(
        files.name, chosen, seed=seed, titles=titles, path=path, split=split or "random", draws=draws
    )
    told = dict.fromkeys(note for _, noted in found.values() for note in noted)
    return replace(dataset, notes=(*told, *notes, *dataset.notes), meaning=meaning)


@step("reading the interactions")
def read_events(path: Path, file_options: FileOptions = DEFAULT_OPTIONS) -> Events:
    """Reads the interactions of one file; raises DataError."""
    table = _read_table(path, file_options)
    return Events(*table.read_events(), table.rating_field)


def read_clicks(path: Path, file_options: FileOptions = DEFAULT_OPTIONS) -> tuple[pl.DataFrame, list[str]]:
    """Reads the clicks of one file, with notes.

    (session, item, time in microseconds). Raises DataError.
    """
    return _read_table(path, file_options).click_table()


def _read_table(path: Path, file_options: FileOptions) -> Table:
    return FORMATS[require_format(path)].read(path, file_options)


def _number_items(titles: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Replaces the ids of titled items by their numbers in a file.

    The file has lines `id number`; items without a line are left out. Raises DataError for other lines.
    """
    pairs = pl.Series(read_lines(path), dtype=pl.String).str.split(" ").to_frame("pair")
    if (wrong := (pairs["pair"].list.len() != 2)).any():
        raise line_error(path, (wrong.arg_max() or 0) + 1, "expected an id and a number with a blank between them")
    numbered = pairs.select(item=pl.col("pair").list.get(0), number=pl.col("pair").list.get(1))
    if numbered["item"].n_unique() < len(numbered) or numbered["number"].n_unique() < len(numbered):
        raise DataError(f"{path}: expected each id and each number once, got one of them again")
    joined = titles.join(numbered, on="item", how="inner", maintain_order="left")
    return joined.with_columns(item="number").drop("number")


def read_titles(path: Path, file_options: FileOptions = ITEM_OPTIONS) -> pl.DataFrame:
    """Reads the titles and attributes of items from one file.

    Columns: item, title and the attributes, with null where nothing is known. Raises DataError.
    """
    name = path.name.removesuffix(".gz")
    if (read := TITLES.get(name) or TITLES.get(format_extension(path))) is None:
        raise DataError(
            f"{path}: expected a file of titles ({', '.join(TITLES)}), got the extension {format_extension(path)!r}"
        )
    return read(path, file_options).title_table()
