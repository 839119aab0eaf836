"""Common catalogue: the list of all items of all silos.

It is made from shards, data files or lists. The list is public among the clients. The aggregator needs its length
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from client_service.data.digests import encode_list, list_digest
from client_service.data.files import current_file
from client_service.data.id_columns import read_id_list
from client_service.data.interaction_files import load_shard
from client_service.data.item_matches import NO_MATCH, name_items, read_matches
from client_service.data.session_files import CLICKS, load_session_shard
from shared.errors import DataError
from shared.files import replace_file
from simulation.datasets.columns import DEFAULT_OPTIONS, FileOptions
from simulation.datasets.content import format_extension
from simulation.datasets.formats import FORMATS
from simulation.datasets.load import load_dataset
from simulation.datasets.ratings import LeastRating

CATALOGUE = "catalogue.txt"


@dataclass(frozen=True)
class DataReading:
    """Options of a data file: least positive rating, and columns."""

    least: LeastRating = "usual"
    file_options: FileOptions = DEFAULT_OPTIONS


def write_catalogue(shards: tuple[Path, ...], folder: Path, matches: Mapping[str, Path] | None = None) -> Path:
    """Writes the sorted item ids of all shards, one a line; returns the file.

    matches: see `merge_shard_items`.
    """
    path = folder / CATALOGUE
    folder.mkdir(parents=True, exist_ok=True)
    save_catalogue(merge_shard_items(shards, matches or {}), path)
    return path


def merge_shard_items(shards: Iterable[Path], matches: Mapping[str, Path]) -> pl.Series:
    """Returns every item id of these shards once, sorted.

    matches: by a shard's name, the silo's signed matches of its own ids; matched items have their common ids.
    """
    found = [_name_shard(shard, matches.get(shard.name)) for shard in shards]
    return pl.concat(found).unique().sort()


def _name_shard(shard: Path, matches: Path | None) -> pl.Series:
    own = _items_of(shard, DataReading())
    if matches is None:
        return own
    named = pl.Series(own.name, name_items(own.to_list(), read_matches(matches)), dtype=pl.String)
    return named.filter(named != NO_MATCH)


def merge_items(sources: Iterable[Path], reading: DataReading | None = None) -> pl.Series:
    """Returns every item id of shards, data files and lists once, sorted.

    Shards are folders, lists are files with one id a line. reading: how data files are read; None: as `lpsfed join`
    does. Raises DataError for an unreadable source, or where there is no id.
    """
    items = pl.concat([_items_of(path, reading or DataReading()) for path in sources]).unique().sort()
    if items.is_empty():
        raise DataError("catalogue: expected ids of items, got none")
    return items


def save_catalogue(items: Sequence[str] | pl.Series, path: Path) -> str:
    """Writes the list atomically; returns its sha256, by which silos compare their lists."""
    try:
        replace_file(path, encode_list(items))
    except OSError as error:
        raise DataError(f"{path}: expected a writable path, got none ({error.strerror})") from None
    return list_digest(items)


def _items_of(path: Path, reading: DataReading) -> pl.Series:
    if path.is_dir() and current_file(path, CLICKS).exists():
        return pl.Series("item", load_session_shard(path).item_ids, dtype=pl.String)
    if path.is_dir():
        return pl.Series("item", load_shard(path).item_ids, dtype=pl.String)
    if not _has_data_format(path):
        return read_id_list(path, "item")
    try:
        return load_dataset(path, 0, reading.least, file_options=reading.file_options).events["item"].unique()
    except DataError as error:
        if reading.file_options != DEFAULT_OPTIONS or not path.is_file():
            raise
        return _listed_items(path, error)


def _has_data_format(path: Path) -> bool:
    """Tells whether a file has a format of interactions.

    Text is taken for a list, because each list would pass for a graph.
    """
    return format_extension(path) in FORMATS and format_extension(path) != "txt"


def _listed_items(path: Path, refused: DataError) -> pl.Series:
    """Reads the list in a file without interactions.

    Raises `refused` where it is no list either.
    """
    try:
        return read_id_list(path, "item")
    except DataError:
        raise refused from None
